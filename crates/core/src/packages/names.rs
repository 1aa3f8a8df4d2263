//! What a cell that failed for want of a module is told: the package that the module comes in.

use pylair_probe::wire::Raised;
use pylair_python::modules::{has_own_package, package_of};

/// What to tell the caller of a cell that failed for want of a module.
pub fn hint_for(error: &Raised, auto_install: bool) -> Option<String> {
    if error.kind != "ModuleNotFoundError" {
        return None;
    }
    let module = error.message.strip_prefix("No module named ")?.split('\'').nth(1)?;
    match package_of(module) {
        // A module that is missing inside of a package that is there is no matter of installing it.
        Some(_) if module.contains('.') && !has_own_package(module) => None,
        Some(package) if package == module => {
            Some(format!("`{module}` is not installed; install_packages([\"{package}\"]) does it"))
        }
        Some(package) => {
            Some(format!("`{module}` comes in the package {package}; install_packages([\"{package}\"]) installs it"))
        }
        None if auto_install && !module.contains('.') => Some(format!(
            "`{module}` was not installed by itself because it is not one of the usual packages; check its spelling, or call \
             install_packages with the name of the package it comes in"
        )),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised(kind: &str, message: &str) -> Raised {
        Raised { kind: kind.to_owned(), message: message.to_owned(), traceback: String::new(), line: None }
    }

    #[test]
    fn a_missing_module_is_answered_with_the_package_to_install() {
        let hint = |message| hint_for(&raised("ModuleNotFoundError", message), false);
        assert_eq!(
            hint("No module named 'cv2'").unwrap(),
            "`cv2` comes in the package opencv-python; install_packages([\"opencv-python\"]) installs it"
        );
        assert_eq!(
            hint("No module named 'numpy'").unwrap(),
            "`numpy` is not installed; install_packages([\"numpy\"]) does it"
        );
        assert_eq!(hint("No module named 'numpy.nothing'"), None);
        assert_eq!(hint("No module named 'numpi'"), None);
        assert_eq!(hint("something else"), None);
        assert_eq!(hint_for(&raised("ImportError", "No module named 'cv2'"), false), None);
        let told = hint_for(&raised("ModuleNotFoundError", "No module named 'numpi'"), true).unwrap();
        assert!(told.contains("check its spelling"), "{told}");
    }
}
