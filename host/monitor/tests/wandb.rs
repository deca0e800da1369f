//! The W&B file: bytes as the official client writes them, and read back.

use chrono::{Local, TimeZone};
use prl_monitor::{Metrics, Sink, Wandb, WandbOptions};
use serde_json::json;
use std::path::PathBuf;

fn options() -> WandbOptions {
    WandbOptions {
        project: "prl".into(),
        entity: Some("team".into()),
        name: Some("n".into()),
        group: Some("g".into()),
        tags: vec!["a".into(), "b".into()],
        id: Some("abc123".into()),
        config: json!({"lr": 1e-6, "model": {"name": "m"}}).as_object().unwrap().clone(),
    }
}

fn file(run: &Wandb) -> PathBuf {
    run.dir().join("run-abc123.wandb")
}

/// Header, run and metric definition, as the client's own protobuf classes serialise them.
const GOLDEN: &str = "\
    3a572642e1be0041e42df31700010801aa01120a100a06302e33312e301206302e31332e3038d360955a000108028a01550a\
    0661626331323312047465616d1a0370726c22250a0b0a026c7282010431652d360a160a056d6f64656c82010c7b226e616d\
    65223a226d227d32016742016e5201615201628a010c0880e2cfaa061080cab5ee01862cb5551300010803620f12012a2204\
    73746570320408011801";

#[test]
fn the_start_of_a_run_is_byte_equal_to_the_official_clients() {
    let dir = tempfile::tempdir().unwrap();
    let started = Local.timestamp_opt(1_700_000_000, 500_000_000).unwrap();
    let run = Wandb::create_at(dir.path(), &options(), started).unwrap();
    let hex: String = std::fs::read(file(&run)).unwrap().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, GOLDEN);
    assert!(run.dir().file_name().unwrap().to_str().unwrap().starts_with("offline-run-20231"));
    assert!(run.sync_hint().contains("wandb sync") && run.sync_hint().contains("offline-run-"));
}

/// Reads the framing back: blocks, chunks, checksums.
fn records(data: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(&data[..7], b":W&B\xe1\xbe\0");
    let (mut at, mut out, mut open) = (7, Vec::new(), None::<Vec<u8>>);
    while at < data.len() {
        let room = 32_768 - at % 32_768;
        if room < 7 {
            assert!(data[at..at + room].iter().all(|b| *b == 0));
            at += room;
            continue;
        }
        let crc = u32::from_le_bytes(data[at..at + 4].try_into().unwrap());
        let len = u16::from_le_bytes(data[at + 4..at + 6].try_into().unwrap()) as usize;
        let body = &data[at + 7..at + 7 + len];
        assert!(len + 7 <= room, "a chunk crosses a block");
        assert_eq!(crc32fast::hash(&data[at + 6..at + 7 + len]), crc);
        match data[at + 6] {
            1 => out.push(body.to_vec()),
            2 => open = Some(body.to_vec()),
            3 => open.as_mut().unwrap().extend_from_slice(body),
            4 => {
                let mut whole = open.take().unwrap();
                whole.extend_from_slice(body);
                out.push(whole);
            }
            other => panic!("chunk type {other}"),
        }
        at += 7 + len;
    }
    assert!(open.is_none());
    out
}

/// Fields of a protobuf message: number, and the value of a varint or the bytes of the rest.
fn fields(mut data: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    fn varint(data: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = data[0];
            *data = &data[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    let mut out = Vec::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let value = varint(&mut data);
        match key & 7 {
            0 => out.push((key >> 3, value, Vec::new())),
            2 => {
                let (bytes, rest) = data.split_at(value as usize);
                out.push((key >> 3, 0, bytes.to_vec()));
                data = rest;
            }
            other => panic!("wire type {other}"),
        }
    }
    out
}

/// Keys and values of the items of a history or summary record.
fn items(body: &[u8], key_field: u64) -> Vec<(String, serde_json::Value)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    fields(body)
        .into_iter()
        .filter(|(field, ..)| *field == 1)
        .map(|(_, _, item)| {
            let parts = fields(&item);
            assert_eq!((parts[0].0, parts[1].0), (key_field, 16));
            (text(&parts[0].2), serde_json::from_str(&text(&parts[1].2)).unwrap())
        })
        .collect()
}

#[test]
fn a_run_reads_back_across_block_borders() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.config.insert("long".into(), "x".repeat(100_000).into());
    let mut run = Wandb::create(dir.path(), &options).unwrap();
    let steps = 3000;
    for step in 1..=steps {
        let metrics: Metrics = [("reward/mean", 1.0 / step as f64), ("bad", f64::NAN)].into_iter().collect();
        run.log(step, &metrics).unwrap();
    }
    run.finish(0).unwrap();
    let data = std::fs::read(file(&run)).unwrap();
    assert!(data.len() > 10 * 32_768);
    let all = records(&data);
    let (numbers, kinds): (Vec<u64>, Vec<(u64, Vec<u8>)>) = all
        .iter()
        .map(|record| {
            let f = fields(record);
            assert_eq!((f.len(), f[0].0), (2, 1));
            (f[0].1, (f[1].0, f[1].2.clone()))
        })
        .unzip();
    assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
    let order: Vec<u64> = kinds.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(order[..3], [21, 17, 12]);
    assert_eq!(order[3..order.len() - 3], vec![2; steps as usize]);
    assert_eq!(order[order.len() - 3..], [3, 18, 22]);

    let row = items(&kinds[3 + 99].1, 2);
    let get = |key: &str| row.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_f64().unwrap());
    assert_eq!((get("step"), get("_step"), get("reward/mean")), (Some(100.0), Some(99.0), Some(0.01)));
    assert!(get("_timestamp").unwrap() > 1.6e9 && get("bad").is_none());
    let summary = items(&kinds[kinds.len() - 3].1, 1);
    assert!(summary.contains(&("step".into(), json!(3000.0))), "{summary:?}");
    assert!(summary.contains(&("_step".into(), json!(2999))));
}

#[test]
fn run_ids_are_short_and_plain() {
    let dir = tempfile::tempdir().unwrap();
    let run = Wandb::create(dir.path(), &WandbOptions { project: "prl".into(), ..Default::default() }).unwrap();
    let name = run.dir().file_name().unwrap().to_str().unwrap().to_string();
    let id = name.rsplit('-').next().unwrap();
    assert!(id.len() == 8 && id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()), "{name}");
    assert!(run.dir().join(format!("run-{id}.wandb")).is_file());
}
