//! Calls into a library that panics where it should return an error. Owns the quiet of such a panic; must not know what is
//! called.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is an error that somebody takes.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// What `work` gives, or the message of its panic, of which the console sees nothing. `work` must leave nothing half done in
/// what others can see.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                others(info);
            }
        }));
    });
    let before = GUARDED.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    done.map_err(|panic| message(panic.as_ref()))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it does not say why").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_its_message() {
        assert_eq!(guarded(|| 7), Ok(7));
        for _ in 0..2 {
            assert_eq!(guarded(|| -> u8 { panic!("over {}", "there") }), Err("over there".to_owned()));
            assert!(!GUARDED.get());
        }
        assert_eq!(guarded(|| -> u8 { panic::panic_any(1) }), Err("it does not say why".to_owned()));
    }
}
