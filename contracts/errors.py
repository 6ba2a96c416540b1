"""Errors that name the artefact at fault."""

__all__ = ["CorruptArtefactError"]


class CorruptArtefactError(Exception):
    """A stored file is not what its manifest says; the message names the file, what came and what was expected."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem

    def __reduce__(self) -> tuple[type["CorruptArtefactError"], tuple[str, str]]:
        return type(self), (self.path, self.problem)
