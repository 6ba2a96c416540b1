import torch

from trainer.ranks.runtime import deterministic


def test_determinism_is_asked_for_inside_only() -> None:
    before = torch.get_deterministic_debug_mode()
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_deterministic_debug_mode() == before
