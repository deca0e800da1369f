//! Whether a server still serves the environment that it did. Owns what makes two of them the same to a run; the host holds
//! instances that are made later against the first in the same way.

use prl_env::{Error, ErrorCode, Info, Result};

/// Refuses another environment than that of before.
pub fn check(before: &Info, now: &Info) -> Result<()> {
    let name = |info: &Info| format!("`{}` {}", info.name, info.version);
    let lines = |info: &Info| -> Vec<_> {
        info.components.iter().map(|line| format!("`{}` with weight {}", line.name, line.weight)).collect()
    };
    let splits = |info: &Info| -> Vec<_> {
        let size = |size: Option<u64>| size.map_or_else(|| "no end".into(), |size| format!("{size} tasks"));
        info.splits.iter().map(|split| format!("`{}` with {}", split.name, size(split.size))).collect()
    };
    let told = if name(before) != name(now) {
        format!("is {} now and was {}", name(now), name(before))
    } else if splits(before) != splits(now) {
        format!("has the splits {} now and had {}", splits(now).join(", "), splits(before).join(", "))
    } else if lines(before) != lines(now) {
        format!("has the reward components {} now and had {}", lines(now).join(", "), lines(before).join(", "))
    } else {
        return Ok(());
    };
    let message = format!("the server was started anew with another environment: it {told}; serve the one of before");
    Err(Error::new(ErrorCode::Upstream, message))
}
