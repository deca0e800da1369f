//! The sandbox against real components: the committed reverse-text and misbehave, and ones made on the spot that are
//! no environments. One binary, a file for each side.

mod sandbox {
    pub mod common;
    mod hostile;
    mod loading;
    mod reverse_text;
    mod served;
    mod services;
    mod tape;
}
