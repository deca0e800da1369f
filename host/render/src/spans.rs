//! Which message each token came from, proved by rendering and never guessed. Owns the two proofs (a message's own text
//! is where a stand-in text appears; a message ends where the shorter conversation ends) and nothing of tokenising.

use prl_types::{Message, Role, RoleSpan};
use std::ops::Range;

/// A byte range of rendered text that belongs to one message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub range: Range<usize>,
    pub role: Role,
    pub is_content: bool,
    /// Index of the message; `None` for the generation prompt and for what closes an earlier turn.
    pub message: Option<usize>,
}

/// Renders some messages, with or without the generation prompt; `None` where the template refuses.
pub(crate) type Render<'a> = &'a dyn Fn(&[Message], bool) -> Option<String>;

/// A word that no template looks at and that `text` does not contain; words of different stems differ.
pub(crate) fn stand_in(stem: &str, text: &str) -> String {
    let mut word = String::from(stem);
    while text.contains(&word) {
        word.push('q');
    }
    word
}

/// The provable segments of `text`, which is `messages` rendered, in order and without overlap. The first `lead` bytes
/// close an assistant's turn that came before `messages`.
pub(crate) fn segments(text: &str, messages: &[Message], lead: usize, generate: bool, render: Render) -> Vec<Segment> {
    let contents = contents(text, messages, generate, render);
    let mut out = Vec::new();
    let scaffold = |out: &mut Vec<Segment>, range: Range<usize>, role, message| {
        if !range.is_empty() {
            out.push(Segment { range, role, is_content: false, message });
        }
    };
    scaffold(&mut out, 0..lead, Role::Assistant, None);
    let mut start = Some(lead);
    for (n, message) in messages.iter().enumerate() {
        let end = render(&messages[..=n], false).filter(|prefix| text.starts_with(prefix.as_str())).map(|p| p.len());
        let content = contents[n].clone();
        let (whole, body) = (start.zip(end), content.clone());
        if let (Some((from, to)), Some(body)) = (whole, body) {
            if from <= body.start && body.end <= to {
                scaffold(&mut out, from..body.start, message.role, Some(n));
                out.push(Segment { range: body.clone(), role: message.role, is_content: true, message: Some(n) });
                scaffold(&mut out, body.end..to, message.role, Some(n));
            }
        } else if let Some((from, to)) = whole {
            scaffold(&mut out, from..to, message.role, Some(n));
        } else if let Some(range) = content {
            out.push(Segment { range, role: message.role, is_content: true, message: Some(n) });
        }
        start = end;
    }
    if generate && let Some(from) = start {
        scaffold(&mut out, from..text.len(), Role::Assistant, None);
    }
    out.sort_by_key(|s| s.range.start);
    let mut covered = 0;
    out.retain(|s| {
        let keep = s.range.start >= covered;
        if keep {
            covered = s.range.end;
        }
        keep
    });
    out
}

/// Where each message's content stands: rendering with another content changes exactly that range.
fn contents(text: &str, messages: &[Message], generate: bool, render: Render) -> Vec<Option<Range<usize>>> {
    let word = stand_in("Wkvbz", text);
    let locate = |n: usize| {
        if messages[n].content.is_empty() {
            return None;
        }
        let mut changed = messages.to_vec();
        changed[n].content.clone_from(&word);
        let other = render(&changed, generate)?;
        let (before, after) = other.split_once(&word)?;
        let fits = before.len() + after.len() < text.len() && text.starts_with(before) && text.ends_with(after);
        fits.then(|| before.len()..text.len() - after.len())
    };
    (0..messages.len()).map(locate).collect()
}

/// Turns segments into token spans. A token belongs to the segment that holds its first byte; tokens outside every
/// segment have no span.
pub(crate) fn token_spans(segments: &[Segment], offsets: &[Range<usize>]) -> Vec<RoleSpan> {
    let mut out: Vec<RoleSpan> = Vec::new();
    let mut current: Option<usize> = None;
    for (token, at) in offsets.iter().enumerate() {
        let found = segments.partition_point(|s| s.range.end <= at.start);
        let found = segments.get(found).filter(|s| s.range.contains(&at.start)).map(|_| found);
        match (found, out.last_mut()) {
            (Some(_), Some(span)) if found == current => span.len += 1,
            (Some(n), _) => {
                let Segment { role, is_content, .. } = segments[n];
                out.push(RoleSpan { start: token, len: 1, role, is_content });
            }
            (None, _) => {}
        }
        current = found;
    }
    out
}
