//! How fast a GPU can be at best. Owns the table of makers' figures; must not know how a device is found.

/// Words of a device's name that tell its chip, the more particular first, and dense bf16 operations per second.
const PEAKS: &[(&[&str], f64)] = &[
    (&["A100"], 312e12),
    (&["H100", "NVL"], 835e12),
    (&["H200", "NVL"], 835e12),
    (&["H100", "PCIe"], 756e12),
    (&["H200", "PCIe"], 756e12),
    (&["H100"], 989e12),
    (&["H200"], 989e12),
    (&["B200"], 2.25e15),
    (&["GB200"], 2.5e15),
    (&["MI300X"], 1307.4e12),
];

/// Floating-point operations per second that the maker gives for dense bf16, by the name that the driver gives the
/// device. `None` for a device that is not in the table: its utilisation is not known.
pub fn peak_flops(device_name: &str) -> Option<f64> {
    let words: Vec<&str> = device_name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    PEAKS.iter().find(|(all, _)| all.iter().all(|word| words.contains(word))).map(|(_, peak)| *peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_drivers_give_them() {
        for (name, peak) in [
            ("NVIDIA A100-SXM4-80GB", Some(312e12)),
            ("NVIDIA A100 80GB PCIe", Some(312e12)),
            ("NVIDIA H100 80GB HBM3", Some(989e12)),
            ("NVIDIA H100 NVL", Some(835e12)),
            ("NVIDIA H100 PCIe", Some(756e12)),
            ("NVIDIA H200", Some(989e12)),
            ("NVIDIA H200 NVL", Some(835e12)),
            ("NVIDIA B200", Some(2.25e15)),
            ("NVIDIA GB200", Some(2.5e15)),
            ("AMD Instinct MI300X", Some(1307.4e12)),
            ("NVIDIA RTX A1000", None),
            ("NVIDIA RTX A6000", None),
            ("NVIDIA H20", None),
            ("NVIDIA GeForce RTX 4090", None),
            ("", None),
        ] {
            assert_eq!(peak_flops(name), peak, "{name}");
        }
    }
}
