//! `pylair repl` at a real terminal: typing, blocks, recalling, completion, Ctrl-C, Ctrl-D, and others in the same session.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::support::{
    Home, Terminal, WAIT_FOREVER,
    terminal::{CTRL_C, CTRL_D, ENTER, TAB, UP},
};

fn plain_home() -> Home {
    Home::new().set("TERM", "xterm").set("NO_COLOR", "1")
}

/// At its first prompt.
fn start(home: &Home) -> Terminal {
    let mut terminal = Terminal::start(home.command(&["repl"]));
    terminal.read_until("In [");
    terminal
}

#[test]
fn a_person_types_python_and_leaves_the_session_alive() {
    let home = plain_home();
    let mut terminal = Terminal::start(home.command(&["repl"]));
    let greeting = terminal.read_until("In [1]: ");
    assert!(greeting.contains("Session main, Python 3."), "{greeting}");
    terminal.enter("x = 6 * 7");
    terminal.read_until("In [2]: ");
    terminal.enter("x");
    assert!(terminal.read_until("In [3]: ").contains("Out[2]: 42"));
    terminal.enter("for i in range(3):");
    terminal.enter("print('line', i)");
    terminal.press(ENTER);
    assert!(terminal.read_until("In [4]: ").contains("line 0\r\nline 1\r\nline 2"), "the block was indented for us");
    terminal.enter("f'''a");
    terminal.enter("b''' + (");
    terminal.enter("'c')");
    assert!(terminal.read_until("In [5]: ").contains("Out[4]: 'a\\nb' + 'c'".replace("' + '", "").as_str()));
    terminal.enter("1 / 0");
    let shown = terminal.read_until("In [6]: ");
    assert!(shown.contains("ZeroDivisionError: division by zero") && shown.contains("<cell 5>"), "{shown}");
    terminal.press(CTRL_D);
    assert!(terminal.wait().success());
    assert_eq!(home.run(&["exec", "x"]).stdout, "42\n", "the session goes on");
}

#[test]
fn what_was_typed_is_recalled_another_day_and_private() {
    let home = plain_home();
    let mut terminal = start(&home);
    terminal.read_until("1]: ");
    terminal.enter("if True:");
    terminal.enter("print('once')");
    terminal.press(ENTER);
    terminal.read_until("In [2]: ");
    terminal.press(CTRL_D);
    assert!(terminal.wait().success());
    let file = home.places().state.join("repl_history");
    assert_eq!(fs::metadata(&file).expect("it was saved").permissions().mode() & 0o777, 0o600);

    let mut terminal = Terminal::start(home.command(&["repl"]));
    terminal.read_until("[cell 1 by repl-");
    terminal.read_until("In [2]: ");
    terminal.press(UP);
    terminal.read_until("print('once')");
    terminal.press(ENTER);
    terminal.press(ENTER);
    assert!(terminal.read_until("In [3]: ").contains("\nonce\r\n"));
    terminal.enter(":history 1");
    terminal.read_until("[cell 2 by repl-");
    terminal.read_until("In [3]: ");
    terminal.enter(":nonsense");
    terminal.read_until("there is no command `:nonsense`");
    terminal.enter(":quit");
    assert!(terminal.wait().success());
}

#[test]
fn ctrl_c_clears_the_line_or_stops_the_cell() {
    let home = plain_home();
    let mut terminal = start(&home);
    terminal.press("never run");
    terminal.read_until("never run");
    terminal.press(CTRL_C);
    terminal.read_until("In [1]: ");
    terminal.enter("kept = 1");
    terminal.read_until("In [2]: ");
    let code = WAIT_FOREVER.replace('\n', "; ").replace("; while", "\nwhile");
    let (first, rest) = code.split_once('\n').expect("two lines");
    terminal.press(&format!("\x1b[200~{first}\n{rest}\x1b[201~"));
    terminal.read_until("sleep(0.01)");
    terminal.press(ENTER);
    terminal.press(ENTER);
    terminal.read_until("\nwaiting\r\n");
    terminal.press(CTRL_C);
    assert!(terminal.read_until("In [3]: ").contains("KeyboardInterrupt"));
    terminal.enter("kept");
    terminal.read_until("Out[3]: 1");
    terminal.read_until("In [4]: ");
    terminal.press(CTRL_D);
    assert!(terminal.wait().success());
}

#[test]
fn what_others_run_is_shown_while_the_prompt_waits() {
    let home = plain_home();
    let mut terminal = start(&home);
    terminal.press("half a li");
    terminal.read_until("half a li");
    assert!(home.run(&["exec", "shared = 'seen'\nother = 2"]).status.success());
    terminal.read_until("[shell runs cell 1: shared = 'seen'…]");
    terminal.read_until("half a li");
    terminal.press("\x15");
    terminal.enter("shared");
    terminal.read_until("Out[2]: 'seen'");
    terminal.read_until("In [3]: ");
    let history = home.run(&["exec", "--json", "1"]).stdout;
    assert!(history.contains("\"cell\":3"), "{history}");
    terminal.press(CTRL_D);
    assert!(terminal.wait().success());
}

#[test]
fn tab_completes_from_the_live_session() {
    let home = plain_home();
    assert!(home.run(&["exec", "class Box: pass\nbox = Box()\nbox.long_attribute = 5"]).status.success());
    let mut terminal = start(&home);
    terminal.press("box.lo");
    terminal.read_until("box.lo");
    terminal.press(TAB);
    terminal.read_until("box.long_attribute");
    terminal.press(ENTER);
    terminal.read_until("Out[2]: 5");
    terminal.read_until("In [3]: ");
    terminal.press(CTRL_D);
    assert!(terminal.wait().success());
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let home = Home::new().set("TERM", "xterm");
    let mut terminal = Terminal::start(home.command(&["repl"]));
    terminal.read_until("\x1b[32mIn [1]: \x1b[0m");
    terminal.press("import math");
    terminal.read_until("\x1b[35mimport\x1b[0m math");
    terminal.press(ENTER);
    terminal.read_until("In [2]: ");
    terminal.press("1 / 0");
    terminal.press(ENTER);
    terminal.read_until("\x1b[31mTraceback");
    terminal.read_until("In [3]: ");
    terminal.press(CTRL_D);
    assert!(terminal.wait().success());
}

#[test]
fn without_a_terminal_all_input_is_one_cell() {
    let home = Home::new();
    let ran = home.run_with_input(&["repl"], b"for i in range(2):\n    print(i)\n\nprint('end')\n");
    assert_eq!((ran.stdout.as_str(), ran.status.code()), ("0\n1\nend\n", Some(0)), "{ran:?}");
    assert_eq!(home.run_with_input(&["repl"], b"1 / 0").status.code(), Some(1));
}

#[test]
fn an_unknown_session_is_told_before_anything_is_typed() {
    let home = plain_home();
    let mut terminal = Terminal::start(home.command(&["repl", "-t", "nowhere"]));
    terminal.read_until("there is no session `nowhere`");
    assert_eq!(terminal.wait().code(), Some(2));
}
