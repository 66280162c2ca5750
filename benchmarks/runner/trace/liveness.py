"""How many bytes are alive only while an operation runs, on top of what autograd keeps."""

import weakref

import torch


class TransientBytes:
    """Follows the storages that a step allocates; what is kept anyway (saved, gradients, weights) is left out."""

    def __init__(self, kept: set[int]) -> None:
        self._kept = kept
        self._live: dict[int, tuple[int, int, weakref.ref[torch.UntypedStorage]]] = {}
        self._current = 0
        self.at_event: list[int] = []
        """Transient bytes right after each event."""

    def allocated(self, tensor: torch.Tensor) -> None:
        """A tensor appeared; its storage may be new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._kept or key in self._live:
            return
        num_bytes = storage.nbytes()
        reference = weakref.ref(storage, lambda _, key=key: self._freed(key))
        self._live[key] = (num_bytes, len(self.at_event), reference)
        self._current += num_bytes

    def keep(self, storage: torch.UntypedStorage) -> None:
        """The storage turned out to be one that is accounted for elsewhere: take it out again, from its birth on."""
        entry = self._live.pop(storage._cdata, None)
        if entry is None:
            return
        num_bytes, birth, _ = entry
        self._current -= num_bytes
        for event in range(birth, len(self.at_event)):
            self.at_event[event] -= num_bytes

    def mark(self) -> int:
        """Number of a new event at this moment."""
        self.at_event.append(self._current)
        return len(self.at_event) - 1

    def _freed(self, key: int) -> None:
        entry = self._live.pop(key, None)
        if entry is not None:
            self._current -= entry[0]
