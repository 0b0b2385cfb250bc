"""The subjects that one host has subscribed to: bounded in number and memory, and in the work to match a subject."""

from __future__ import annotations

from sbus_services.link.permissions import ANY, REST

MAX_SUBJECTS = 5_000
MAX_TOKENS = 32
"""Of one subject; those of links have at most 29."""
MAX_NODES = 50_000
"""Of the tree; a node needs some 300 bytes."""
MAX_STEPS = 512
"""Nodes visited to match one subject. A host needs more only for many overlapping wildcards; then it gets the message without a match."""


class TooManySubjectsError(Exception):
    """The host has subscribed to more than the limits permit."""


class _Node:
    """One token of the tree."""

    __slots__ = ("branches", "is_end", "takes_rest")

    def __init__(self) -> None:
        self.branches: dict[str, _Node] = {}
        self.is_end = False
        self.takes_rest = False

    @property
    def is_empty(self) -> bool:
        return not (self.branches or self.is_end or self.takes_rest)


class SubjectTree:
    """Subjects with wildcards, by their tokens."""

    def __init__(self) -> None:
        self._root = _Node()
        self._subjects: set[str] = set()
        self._nodes = 0

    def __len__(self) -> int:
        return len(self._subjects)

    def add(self, subject: str) -> None:
        """Add *subject* unless it is there. Raises TooManySubjectsError."""
        if subject in self._subjects:
            return
        tokens, takes_rest = _tokens(subject)
        if len(tokens) > MAX_TOKENS:
            raise TooManySubjectsError(f"the subject has {len(tokens)} tokens; the maximum is {MAX_TOKENS}")
        if len(self._subjects) >= MAX_SUBJECTS or self._nodes + len(tokens) > MAX_NODES:
            raise TooManySubjectsError(
                f"there are {len(self._subjects)} subscriptions; the maximum is {MAX_SUBJECTS}, or less if they are long"
            )
        self._subjects.add(subject)
        node = self._root
        for token in tokens:
            branch = node.branches.get(token)
            if branch is None:
                branch = node.branches[token] = _Node()
                self._nodes += 1
            node = branch
        if takes_rest:
            node.takes_rest = True
        else:
            node.is_end = True

    def remove(self, subject: str) -> None:
        """Remove *subject* if it is there."""
        if subject not in self._subjects:
            return
        self._subjects.remove(subject)
        tokens, takes_rest = _tokens(subject)
        path = [self._root]
        for token in tokens:
            path.append(path[-1].branches[token])
        if takes_rest:
            path[-1].takes_rest = False
        else:
            path[-1].is_end = False
        for token, node, parent in zip(reversed(tokens), reversed(path[1:]), reversed(path[:-1]), strict=True):
            if not node.is_empty:
                break
            del parent.branches[token]
            self._nodes -= 1

    def matches(self, subject: str) -> bool:
        """Return whether a subscription matches *subject*, which has no wildcards."""
        tokens = subject.split(".")
        waiting = [(self._root, 0)]
        steps = 0
        while waiting:
            node, depth = waiting.pop()
            steps += 1
            if steps > MAX_STEPS:
                return True
            if depth == len(tokens):
                if node.is_end:
                    return True
                continue
            if node.takes_rest:
                return True
            waiting.extend((node.branches[each], depth + 1) for each in (ANY, tokens[depth]) if each in node.branches)
        return False


def _tokens(subject: str) -> tuple[list[str], bool]:
    """Return the tokens of *subject*, and whether it takes every continuation of them."""
    tokens = subject.split(".")
    return (tokens[:-1], True) if tokens[-1] == REST else (tokens, False)
