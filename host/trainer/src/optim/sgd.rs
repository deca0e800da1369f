//! Gradient descent: with momentum, and by signs. Owns both formulas over plain numbers; must not know models or files.

/// The momentum in the file.
pub(super) const SLOT: &str = "momentum_buffer";

/// Gradient descent with momentum as torch has it (`torch.optim.SGD`, no dampening). With weights p, gradient d, decay λ
/// and momentum μ: g = d + λ·p; b = μ·b + g, where the first b is g; p −= lr·(g + μ·b) with Nesterov's look ahead, else
/// p −= lr·b.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sgd {
    pub momentum: f64,
    pub nesterov: bool,
    pub weight_decay: f64,
}

impl Sgd {
    /// A step of one parameter. Without momentum there is no `buffer`.
    pub fn step(&self, lr: f64, weights: &mut [f32], grad: &[f32], buffer: &mut Option<Vec<f32>>) {
        let [lr, momentum, decay] = [lr, self.momentum, self.weight_decay].map(|x| x as f32);
        if self.momentum == 0.0 {
            *buffer = None;
            for (p, d) in weights.iter_mut().zip(grad) {
                *p -= lr * (d + decay * *p);
            }
            return;
        }
        let begun = buffer.is_some();
        let buffer = buffer.get_or_insert_with(|| vec![0.0; grad.len()]);
        for ((p, d), b) in weights.iter_mut().zip(grad).zip(buffer) {
            let g = d + decay * *p;
            *b = if begun { momentum * *b + g } else { g };
            *p -= lr * if self.nesterov { g + momentum * *b } else { *b };
        }
    }
}

/// Descent by signs: p −= lr·(sign(d) + λ·p), where sign(0) is 0 (Bernstein et al. 2018, with decoupled decay).
#[derive(Clone, Copy, Debug)]
pub(super) struct SignSgd {
    pub weight_decay: f64,
}

impl SignSgd {
    /// A step of one parameter.
    pub fn step(&self, lr: f64, weights: &mut [f32], grad: &[f32]) {
        let (rate, decay) = (lr as f32, (lr * self.weight_decay) as f32);
        for (p, d) in weights.iter_mut().zip(grad) {
            // 1 − lr·λ would round a small decay away.
            *p -= decay * *p + if *d == 0.0 { 0.0 } else { rate.copysign(*d) };
        }
    }
}
