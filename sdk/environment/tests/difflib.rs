//! Holds `prl_env::ratio` against values that CPython's difflib gave (tests/golden/difflib.py).

#[test]
fn equals_python_bit_for_bit() {
    let text = include_str!("golden/difflib.json");
    let cases: Vec<(String, String, f64)> = serde_json::from_str(text).expect("the golden file is JSON");
    assert!(cases.len() > 150);
    for (a, b, want) in cases {
        assert_eq!(prl_env::ratio(&a, &b).to_bits(), want.to_bits(), "ratio({a:?}, {b:?}), want {want}");
    }
}
