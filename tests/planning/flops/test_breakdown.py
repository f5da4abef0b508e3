from electra_jax.planning.flops.breakdown import Parts, sum_networks


def test_arithmetic():
    parts = Parts(embeddings=1, attention=2, ffn=3, head=4, softmax=5)
    assert parts.total == 15
    assert parts * 2 == Parts(2, 4, 6, 8, 10)
    assert parts + Parts(ffn=10) == Parts(1, 2, 13, 4, 5)
    assert sum_networks({"generator": parts, "encoder": Parts(head=100)}) == 115
    assert sum_networks({}) == 0
