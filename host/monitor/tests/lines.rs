//! The wording of the lines that scripts read.

use prl_monitor::{EnvLine, EvalLine, OrchestratorLine, PipelineLine, SftLine, TrainerLine, ValidationLine, duration};

#[test]
fn durations_read_well_at_every_size() {
    for (seconds, text) in [
        (0.0, "0ms"),
        (0.5321, "532ms"),
        (0.9996, "1.0s"),
        (12.34, "12.3s"),
        (59.94, "59.9s"),
        (59.96, "1m 0s"),
        (184.0, "3m 4s"),
        (3599.6, "1h 0m"),
        (3900.0, "1h 5m"),
        (93_600.0, "1d 2h"),
        (-1.0, "0ms"),
        (f64::NAN, "0ms"),
    ] {
        assert_eq!(duration(seconds), text, "{seconds}");
    }
}

#[test]
fn trainer_line() {
    let line = TrainerLine {
        step: 3,
        seconds: 12.34,
        loss: -0.00123,
        entropy: 0.5,
        mismatch_kl: 0.00004,
        grad_norm: 0.25,
        lr: 3e-6,
        throughput: 1234.6,
        mfu: Some(12.34),
        peak_memory_gib: 1.26,
        ..Default::default()
    };
    assert_eq!(
        line.to_string(),
        "Step 3 |   12.3s | Loss -0.0012 | Entropy 0.5000 | Mismatch KL 0.0000 | Grad. Norm 0.2500 | LR 3.00e-06 | \
         Throughput 1235 tokens/s | MFU 12.3% | Peak Mem. 1.3 GiB"
    );
    let line = TrainerLine { mfu: None, max_vio: Some(0.5), routing_confidence: Some(0.25), lr: 1.0, ..line };
    assert!(line.to_string().contains("LR 1.00e+00"));
    assert!(line.to_string().ends_with("MFU n/a | Peak Mem. 1.3 GiB | Max Vio 0.5000 | Routing Conf. 0.2500"));
}

#[test]
fn sft_and_validation_lines() {
    let line = SftLine {
        step: 1,
        seconds: 0.2,
        loss: 4.6,
        lr: 1e-3,
        peak_memory_gib: 2.0,
        total_memory_gib: 8.0,
        ..Default::default()
    };
    assert_eq!(
        line.to_string(),
        "Step 1 |   200ms | Loss 4.6000 | Grad. Norm 0.0000 | LR 1.00e-03 | Throughput 0 tokens/s | MFU n/a | \
         Peak Mem. 2.0/8.0 GiB (25.0%)"
    );
    assert_eq!(ValidationLine { step: 50, loss: 0.88 }.to_string(), "Validation | Step 50 | Loss 0.8800");
    assert_eq!(ValidationLine { step: 50, loss: f64::NAN }.to_string(), "Validation | Step 50 | Loss nan");
    let none = SftLine { step: 1, loss: f64::NAN, grad_norm: f64::INFINITY, ..Default::default() };
    assert!(none.to_string().contains("| Loss nan | Grad. Norm inf |"), "{none}");
}

#[test]
fn orchestrator_and_eval_lines() {
    let env = EnvLine {
        env: "a".into(),
        ratio: 0.5,
        reward: 0.71234,
        trainable: 96,
        rollouts: 128,
        turns: 1.0,
        branches: 1.0,
        max_off_policy: 1,
        error: 0.0,
        truncation: 0.015,
    };
    let line = OrchestratorLine { step: 15, seconds: 3.3, all: env.clone(), envs: vec![env.clone()] };
    let one = "Step 15 |    3.3s | Reward 0.7123 | Trainable 96/128 (75.0%) | Turns 1.0 | Branches 1.0 | \
               Max Off-Policy 1 | Error 0.0% | Truncation 1.5%";
    assert_eq!(line.to_string(), one);
    let two = OrchestratorLine { envs: vec![env.clone(), EnvLine { env: "b".into(), ..env }], ..line }.to_string();
    let lines: Vec<&str> = two.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, one));
    assert!(lines[2].starts_with("╰─ b | Ratio 50.0% | Reward 0.7123 | Trainable 96/128"));

    let eval = EvalLine {
        env: "reverse-text".into(),
        step: 20,
        policy_version: 20,
        seconds: 61.0,
        reward: 0.8,
        ..Default::default()
    };
    assert_eq!(
        eval.to_string(),
        "Evaluated reverse-text (Step 20) | Policy v20 |   1m 1s | Reward 0.8000 | Turns 0.0 | Branches 0.0 | \
         Error 0.0% | Truncation 0.0%"
    );

    let pipeline = PipelineLine { step: 3, waiting: 12, batch: 128, train: 30, eval: 4 };
    assert_eq!(
        pipeline.to_string(),
        "Pipeline | Step 3 | Train batch 12/128 (9.4%) (+0 buffered); 34 inflight rollouts (train=30, eval=4)"
    );
    let over = PipelineLine { waiting: 131, ..pipeline }.to_string();
    assert!(over.contains("Train batch 128/128 (100.0%) (+3 buffered)"), "{over}");
}
