//! The order of draws: epochs, shuffles, and sources that take turns.

use super::*;
use crate::Document;
use crate::spool::SpoolWriter;
use proptest::prelude::*;

/// A mixture of one part.
pub(crate) fn stored(documents: &[Document], shuffle: Option<u64>, epochs: Option<u64>) -> Mixture {
    let turns = Turns { probabilities: None, until: Until::All, seed: 0 };
    Mixture::new(vec![part("all", documents)], &turns, shuffle, epochs).unwrap()
}

fn part(name: &str, documents: &[Document]) -> Part {
    let mut writer = SpoolWriter::new(tempfile::tempfile().unwrap());
    documents.iter().for_each(|document| writer.push(document).unwrap());
    Part { name: name.into(), documents: writer.finish().unwrap(), commit: None }
}

fn documents(first: u32, n: u32) -> Vec<Document> {
    (0..n).map(|i| Document { ids: vec![first + i, 1], mask: vec![false, true] }).collect()
}

fn turns(probabilities: Option<&[f64]>, until: Until) -> Turns {
    Turns { probabilities: probabilities.map(<[f64]>::to_vec), until, seed: 7 }
}

/// Part and first token of some draws.
fn draws(mixture: &mut Mixture, draws: std::ops::Range<u64>) -> Vec<(usize, u32)> {
    draws.map(|n| mixture.get(n).unwrap().unwrap()).map(|d| (d.part, d.document.ids[0])).collect()
}

#[test]
fn every_epoch_has_its_own_order_and_every_document() {
    let all = documents(0, 20);
    let mut source = stored(&all, Some(3), Some(2));
    let drawn: Vec<Document> = (0..40).map(|n| source.get(n).unwrap().unwrap().document).collect();
    assert!(source.get(40).unwrap().is_none());
    assert_ne!(drawn[..20], drawn[20..]);
    assert_ne!(drawn[..20], all);
    for epoch in [&drawn[..20], &drawn[20..]] {
        let mut sorted = epoch.to_vec();
        sorted.sort_by_key(|d| d.ids[0]);
        assert_eq!(sorted, all);
    }
    // Any draw at any time: what a resumed run asks for.
    assert_eq!(stored(&all, Some(3), None).get(33).unwrap().unwrap().document, drawn[33]);
}

/// What `interleave_datasets` of datasets 5.2 gives.
#[test]
fn one_by_one_as_hugging_face_has_it() {
    let mixed = |until| {
        let parts = vec![part("a", &documents(0, 2)), part("b", &documents(10, 4)), part("c", &documents(20, 3))];
        let mut mixture = Mixture::new(parts, &turns(None, until), None, Some(1)).unwrap();
        let len = mixture.epoch_len() as u64;
        assert!(mixture.get(len).unwrap().is_none());
        draws(&mut mixture, 0..len).into_iter().map(|(_, id)| id).collect::<Vec<_>>()
    };
    assert_eq!(mixed(Until::First), [0, 10, 20, 1, 11, 21]);
    assert_eq!(mixed(Until::All), [0, 10, 20, 1, 11, 21, 0, 12, 22, 1, 13, 20]);
}

#[test]
fn a_mixture_has_the_shares_that_were_asked_for_in_every_epoch() {
    let mixture = |shuffle| {
        let parts = vec![part("a", &documents(0, 3000)), part("b", &documents(10_000, 1000))];
        Mixture::new(parts, &turns(Some(&[0.75, 0.25]), Until::All), shuffle, None).unwrap()
    };
    let mut shuffled = mixture(Some(5));
    let len = shuffled.epoch_len() as u64;
    assert!((3000..5000).contains(&len), "{len}");
    let (first, second) = (draws(&mut shuffled, 0..len), draws(&mut shuffled, len..2 * len));
    assert_ne!(first, second);
    for epoch in [&first, &second] {
        let share = epoch.iter().filter(|(part, _)| *part == 0).count() as f64 / len as f64;
        // Three standard deviations.
        assert!((share - 0.75).abs() < 0.021, "{share}");
        assert!(epoch.iter().all(|(part, id)| (*part == 1) == (*id >= 10_000)));
        let seen: std::collections::BTreeSet<u32> = epoch.iter().map(|(_, id)| *id).collect();
        assert_eq!(seen.len(), 4000, "all are seen");
    }
    assert_eq!(draws(&mut mixture(Some(5)), 0..len), first, "the seed says it all");
    assert_eq!((shuffled.epoch(len - 1), shuffled.epoch(len)), (0, 1));
    // Not shuffled, every epoch is the same.
    let mut plain = mixture(None);
    assert_eq!(draws(&mut plain, 0..len), draws(&mut plain, len..2 * len));
    assert_eq!(plain.parts(), ["a", "b"]);
}

#[test]
fn once_is_once_however_long_the_others_are() {
    let mut once = Mixture::once(vec![part("a", &documents(0, 2)), part("b", &documents(10, 4))]).unwrap();
    assert_eq!(draws(&mut once, 0..6), [(0, 0), (0, 1), (1, 10), (1, 11), (1, 12), (1, 13)]);
    assert!(once.get(6).unwrap().is_none());
}

/// What order does not follow from does not make data other data.
#[test]
fn a_fingerprint_has_what_the_order_follows_from() {
    let order = |parts: usize, turns: Turns, shuffle| {
        let parts = (0..parts).map(|p| part(&p.to_string(), &documents(0, 3))).collect();
        let print = Mixture::new(parts, &turns, shuffle, None).unwrap().fingerprint().unwrap();
        print.order.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(order(1, turns(None, Until::All), None), "data.shuffle=false");
    assert_eq!(order(1, turns(None, Until::First), Some(7)), "data.seed=7 data.shuffle=true");
    assert_eq!(order(2, turns(None, Until::All), None), "data.shuffle=false data.stopping_strategy=all_exhausted");
    assert_eq!(
        order(2, turns(Some(&[0.5, 0.5]), Until::First), None),
        "data.probabilities=[0.5, 0.5] data.seed=7 data.shuffle=false data.stopping_strategy=first_exhausted"
    );
}

#[test]
fn mixtures_that_cannot_be_are_refused() {
    let refused = |lens: &[u32], probabilities: Option<&[f64]>| {
        let parts = lens.iter().map(|n| part("p", &documents(0, *n))).collect();
        Mixture::new(parts, &turns(probabilities, Until::All), None, None).err().unwrap().to_string()
    };
    assert_eq!(refused(&[1, 0], None), "a source has no documents");
    assert!(refused(&[1, 1], Some(&[1.0])).contains("no probabilities of 2 sources"));
    assert!(refused(&[1, 1], Some(&[1.0, 0.0])).contains("no probabilities"));
    let uneven = refused(&[1, 1], Some(&[1.0 - 1e-10, 1e-10]));
    assert_eq!(uneven, "an epoch of the mixture would have about 1.0e10 documents: mix less unevenly");
}

/// What sources have at least is enough to know.
#[test]
fn an_epoch_that_memory_cannot_hold_is_refused_before_it_is_laid_out() {
    let uneven = [1e-7, 1.0 - 1e-7];
    let told = |until, lens: &[usize], memory| {
        let checked = turns(Some(&uneven), until).check(lens, memory);
        checked.err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(told(Until::All, &[1, 1], 1 << 30), "");
    let text = told(Until::All, &[100, 1], 1 << 30);
    assert!(text.starts_with("an epoch would have about 1.0e9 draws, which take 7.5 GiB of memory"), "{text}");
    assert!(told(Until::All, &[1000, 1], u64::MAX).contains("mix less unevenly"));
    assert_eq!(told(Until::First, &[1000, 1], 64), "");
    // One by one the shorter one is repeated.
    assert!(turns(None, Until::All).check(&[1 << 20, 1], 1 << 23).is_err());
    assert!(turns(None, Until::All).check(&[1 << 20], 0).is_ok());
}

proptest! {
    #[test]
    fn an_epoch_ends_when_it_is_told_to(
        lens in prop::collection::vec(1usize..9, 2..4), seed in any::<u64>(), first in any::<bool>(), drawn in any::<bool>(),
    ) {
        let until = if first { Until::First } else { Until::All };
        let probabilities = drawn.then(|| vec![1.0 / lens.len() as f64; lens.len()]);
        let places = Turns { probabilities, until, seed }.sequence(&lens).unwrap();
        let starts: Vec<usize> = lens.iter().scan(0, |at, len| { *at += len; Some(*at - len) }).collect();
        let mut taken = vec![0; lens.len()];
        for place in &places {
            let part = (0..lens.len()).rev().find(|p| *place as usize >= starts[*p]).unwrap();
            prop_assert_eq!(*place as usize - starts[part], taken[part] % lens[part], "in order, again and again");
            taken[part] += 1;
        }
        let through: Vec<bool> = taken.iter().zip(&lens).map(|(t, len)| t >= len).collect();
        let ended = if first { through.contains(&true) } else { !through.contains(&false) };
        prop_assert!(ended);
        if !drawn {
            let of = if first { lens.iter().min() } else { lens.iter().max() };
            prop_assert_eq!(places.len(), lens.len() * of.unwrap());
        }
    }
}
