import socket
import threading

import pytest

from electra_jax.runtime.relay import Relay


@pytest.fixture
def target():
    """A server, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server, f"127.0.0.1:{server.getsockname()[1]}"


def connect(relay: Relay) -> socket.socket:
    host, _, port = relay.address.rpartition(":")
    return socket.create_connection((host, int(port)), 60)


def receive(end: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (data := end.recv(size - len(received))):
        received += data
    return received


def test_it_passes_on_both_ways(target):
    server, address = target
    big = bytes(range(256)) * 4096
    with connect(Relay(address, lost=lambda: None)) as client:
        process_0, _ = server.accept()
        with process_0:
            for source, sink in ((client, process_0), (process_0, client)):
                sending = threading.Thread(target=source.sendall, args=(big,))
                sending.start()
                assert receive(sink, len(big)) == big
                sending.join()


def test_the_loss_of_the_target_is_told_and_the_connection_stays_open(target):
    server, address = target
    told, told_and_done = threading.Event(), threading.Event()

    def lost():
        told.set()
        told_and_done.wait(60)  # as it ends the process

    with connect(Relay(address, lost)) as client:
        process_0, _ = server.accept()
        process_0.sendall(b"x")
        assert client.recv(1) == b"x"
        process_0.close()
        assert told.wait(60)
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)
        told_and_done.set()


@pytest.mark.parametrize("how", ["stopped", "closed by the client"])
def test_an_end_that_is_meant_is_no_loss(target, how):
    server, address = target
    told = threading.Event()
    relay = Relay(address, told.set)
    with connect(relay) as client:
        process_0, _ = server.accept()
        with process_0:
            process_0.sendall(b"x")
            assert client.recv(1) == b"x"
            if how == "stopped":
                relay.stop()
                process_0.close()
                assert client.recv(1) == b""
            else:
                client.close()
                process_0.settimeout(60)
                assert process_0.recv(1) == b""
    assert not told.wait(0.1)


def test_a_target_that_does_not_listen_yet_closes_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    told = threading.Event()
    with connect(Relay(address, told.set)) as client:
        assert client.recv(1) == b""
    assert not told.is_set()
