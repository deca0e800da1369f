//! Copies, page-locked memory and the memory's size.
//!
//! Owns the sizes. Must not know kernels.

use prl_kernels::cuda::{Context, UsedBytes};

use crate::bench::Table;

use super::Done;

pub fn all(c: &Context, t: &mut Table) -> Done {
    const N: usize = 1000;
    let x: Vec<i32> = (0..N as i32).collect();
    let mut a = c.upload(&vec![-1i32; N])?;
    c.upload_into(&x[..300], &mut a.slice_mut(100..500))?;
    c.fill_zero(&mut a.slice_mut(900..950))?;
    let mut want = vec![-1i32; N];
    want[100..400].copy_from_slice(&x[..300]);
    want[900..950].fill(0);
    let (mut part, mut pinned) = (vec![5i32; 40], c.pinned::<i32>(N)?);
    c.read_into(&a.slice(380..), &mut part)?;
    t.holds("copies", "whole", c.download(&a)? == want);
    t.holds("copies", "a view", c.download(&a.slice(880..960))? == want[880..960]);
    t.holds("copies", "into", part == want[380..420]);
    for from in [0, 500] {
        c.read_pinned(&a.slice(from..), &mut pinned, N - from)?;
        let whole = pinned.as_slice()?[..N - from] == want[from..];
        t.holds("copies", "page-locked", whole && pinned.as_slice()?.len() == N);
    }
    t.holds("copies", "too long", c.upload_into(&x, &mut a.slice_mut(1..)).is_err());
    t.holds("copies", "too short", c.read_into(&a.slice(..3), &mut part).is_err());

    let before = (c.pool_bytes()?, c.used_bytes());
    let big = c.zeros::<u8>(1 << 30)?;
    c.synchronize()?;
    let with = (c.pool_bytes()?, c.used_bytes());
    drop(big);
    let after = c.pool_bytes()?;
    println!("MEMORY before {before:?}, with 1 GiB more {with:?}, after {after:?}");
    t.holds("memory", "pool", with.0.used >= before.0.used + (1 << 30) && after.used_high >= with.0.used);
    if let (Some(UsedBytes::Process(a) | UsedBytes::Device(a)), Some(UsedBytes::Process(b) | UsedBytes::Device(b))) =
        (before.1, with.1)
    {
        t.holds("memory", "in use", b > a);
    }
    Ok(())
}
