"""Errors that name the artefact at fault."""

from pydantic import ValidationError

__all__ = ["CorruptArtefactError", "in_one_line"]


class CorruptArtefactError(Exception):
    """A stored file is not what its manifest says; the message names the file, what was found and what was expected."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem

    def __reduce__(self) -> tuple[type["CorruptArtefactError"], tuple[str, str]]:
        return type(self), (self.path, self.problem)


def in_one_line(error: ValidationError) -> str:
    """Return what is wrong with a document, field by field, without pydantic's surrounding text."""
    details = error.errors(include_url=False, include_input=False)
    return "; ".join(": ".join(filter(None, [".".join(map(str, d["loc"])), d["msg"]])) for d in details)
