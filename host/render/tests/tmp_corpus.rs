//! tmp
mod common;
use prl_render::*;
use prl_types::*;
use serde::Deserialize;
use std::collections::BTreeMap;
#[derive(Deserialize)]
struct G {
    template: String,
    conv: String,
    messages: Vec<Message>,
    tools: Vec<serde_json::Value>,
    generate: bool,
    text: Option<String>,
}
#[test]
fn corpus() {
    let gs: Vec<G> = serde_json::from_str(&std::fs::read_to_string("/tmp/dl/corpus.json").unwrap()).unwrap();
    let mut rs = BTreeMap::new();
    let (mut same, mut diff, mut miss) = (0, 0, 0);
    let mut shown = BTreeMap::<String, usize>::new();
    let mut bridge = BTreeMap::<String, [usize; 4]>::new();
    for g in &gs {
        let r = rs.entry(g.template.clone()).or_insert_with(|| {
            let dir = common::model_dir("chatml.jinja");
            Renderer::load(
                dir.path(),
                RendererOptions { chat_template: Some(g.template.clone()), ..Default::default() },
            )
            .map_err(|e| println!("LOAD {e}"))
            .ok()
        });
        let Some(r) = r else { continue };
        let tools: Vec<ToolDef> = g.tools.iter().map(|t| serde_json::from_value(t.clone()).unwrap()).collect();
        let got = r.render_text(&g.messages, &tools, g.generate);
        let name = g.template.rsplit('/').next().unwrap().to_string();
        match (&got, &g.text) {
            (Ok(a), Some(b)) if a == b => same += 1,
            (Err(_), None) => same += 1,
            (a, b) => {
                if a.is_ok() && b.is_some() {
                    diff += 1
                } else {
                    miss += 1
                }
                let n = shown.entry(name.clone()).or_default();
                *n += 1;
                if *n <= 1 {
                    let (a, b) = (format!("{a:?}"), format!("{b:?}"));
                    let p = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
                    let cut = |s: &str| s.chars().skip(p.saturating_sub(30)).take(140).collect::<String>();
                    println!(
                        "{name} {} tools={} gen={}\n   got {}\n   exp {}",
                        g.conv,
                        !tools.is_empty(),
                        g.generate,
                        cut(&a),
                        cut(&b)
                    );
                }
            }
        }
        if !g.generate && tools.is_empty() && g.text.is_some() {
            let e = bridge.entry(name).or_default();
            match r.training_sample(&g.messages, &tools, LossMask::default()) {
                Ok(_) => e[0] += 1,
                Err(_) => e[1] += 1,
            }
            match r.bridge_to_next_turn(&[5], &[Message::text(Role::User, "x")]) {
                Some(_) => e[2] += 1,
                None => e[3] += 1,
            }
        }
    }
    println!("same {same} diff {diff} miss {miss}");
    for (k, v) in bridge.iter().filter(|(k, _)| k.contains("qwen")) {
        println!("{k} {v:?}");
    }
}
