//! What the sandbox and plug-ins warn of, such as a cache that cannot be used, for commands that keep no log: on standard error, each
//! warning once.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// The crates that are listened to.
const SPEAKERS: [&str; 2] = ["prl_algorithm", "prl_environment"];

/// Shows warnings from now on.
pub fn show() {
    let told = tracing_subscriber::registry().with(Told::default());
    // It is the first and only one: this is called by commands without a log.
    let _ = tracing::subscriber::set_global_default(told);
}

/// The texts that were shown.
#[derive(Default)]
struct Told(Mutex<BTreeSet<String>>);

impl<S: Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let about = event.metadata();
        let is_ours = about
            .module_path()
            .and_then(|module| module.split("::").next())
            .is_some_and(|name| SPEAKERS.contains(&name));
        if !is_ours || *about.level() > Level::WARN {
            return;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(text.0.clone()) {
            // Nobody reading standard error is no error.
            let _ = writeln!(std::io::stderr().lock(), "warning: {}", crate::logging::plain(&text.0));
        }
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}
