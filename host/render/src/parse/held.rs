//! Text that waits to be read, and white space that waits to be given. Owns that reading stays linear in the length of a turn,
//! however small the pieces are that it arrives in; knows nothing of what the text means.

/// Text that arrives behind and is taken in front. A mark is looked for once at each place, however often it is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    text: String,
    /// Where what was not taken yet begins.
    from: usize,
    /// Up to where the mark under way was looked for.
    looked: usize,
}

impl Held {
    /// Adds text behind.
    pub fn push(&mut self, text: &str) {
        if self.from > self.text.len() / 2 {
            self.text.drain(..self.from);
            self.looked -= self.from;
            self.from = 0;
        }
        self.text.push_str(text);
    }

    /// Puts text in front of all.
    pub fn put_back(&mut self, text: &str) {
        *self = Held { text: text.to_owned() + self.as_str(), ..Held::default() };
    }

    /// All of it.
    pub fn as_str(&self) -> &str {
        &self.text[self.from..]
    }

    /// Takes the first `n` bytes.
    pub fn take(&mut self, n: usize) -> &str {
        let from = self.from;
        self.from += n;
        self.looked = self.from;
        &self.text[from..self.from]
    }

    /// Takes all of it.
    pub fn take_all(&mut self) -> &str {
        self.take(self.text.len() - self.from)
    }

    /// Takes what stands before `mark`, and drops the mark; `None` while it is not there. Another mark than the one before may
    /// be asked for once something was taken.
    pub fn take_until(&mut self, mark: &str) -> Option<&str> {
        // The mark may have begun where it was looked for last.
        let from = self.looked.saturating_sub(mark.len() - 1).max(self.from);
        let Some(at) = self.text[self.text.floor_char_boundary(from)..].find(mark) else {
            self.looked = self.text.len();
            return None;
        };
        let (start, end) = (self.from, self.text.floor_char_boundary(from) + at);
        self.from = end + mark.len();
        self.looked = self.from;
        Some(&self.text[start..end])
    }

    /// Takes all that cannot be the beginning of `mark`.
    pub fn take_before(&mut self, mark: &str) -> &str {
        let text = self.as_str();
        let begun = (1..mark.len()).rev().find(|n| text.ends_with(&mark[..*n])).unwrap_or(0);
        self.take(text.len() - begun)
    }
}

/// White space that is text only where more text follows.
#[derive(Clone, Debug, Default)]
pub(super) struct Space(String);

impl Space {
    /// Adds space that waits.
    pub fn push(&mut self, space: &str) {
        self.0.push_str(space);
    }

    /// Gives `text` to `out`, behind the space that waits; the space at its end waits in turn. `is_space` says what that is.
    /// Whether anything was given.
    pub fn give(&mut self, text: &str, is_space: fn(char) -> bool, out: &mut String) -> bool {
        let solid = text.trim_end_matches(is_space);
        if !solid.is_empty() {
            out.push_str(&self.0);
            out.push_str(solid);
            self.0.clear();
        }
        self.0.push_str(&text[solid.len()..]);
        !solid.is_empty()
    }

    /// Takes what waits.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.0)
    }
}
