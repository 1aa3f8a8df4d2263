import no_such_plotting_library

draw = no_such_plotting_library.draw
