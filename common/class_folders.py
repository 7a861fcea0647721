"""A folder of class folders: which images it holds, of which classes, and what is left out."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from common.datasets import DataError
from common.images import IMAGE_SUFFIXES, is_junk
from common.names import clean, counted, ordered, quoted, twice

#: Names the classes in the order of their numbers, one a line.
CLASSES, CACHE = "classes.txt", ".greedyfed-cache.safetensors"


@dataclass(frozen=True)
class ClassFolder:
    """Images `<class>/<image>` with their classes' numbers, the names of classes, and notes."""

    classes: tuple[str, ...]
    images: tuple[str, ...]
    labels: tuple[int, ...]
    notes: tuple[str, ...]


def class_folder(place: Path, source: str) -> ClassFolder:
    """Look through a folder.

    Raises:
        DataError: no images, or some whose class is not clear.
        OSError: a folder cannot be read.
    """
    here = [p for p in sorted(place.iterdir()) if not p.name.startswith(CACHE)]
    _check_links(here, source)
    folders = [p for p in here if p.is_dir() and not is_junk(p.name)]
    beside = [p for p in here if not p.is_dir() and not is_junk(p.name) and p.name != CLASSES]
    junk = [p for p in here if is_junk(p.name)]
    images: dict[str, list[str]] = {}
    others, deeper, empty = list[Path](), list[str](), list[str]()
    for folder in folders:
        inside = sorted(folder.iterdir())
        _check_links(inside, source)
        junk += [p for p in inside if is_junk(p.name)]
        inside = [p for p in inside if not is_junk(p.name)]
        files = [p for p in inside if not p.is_dir()]
        for below in (p for p in inside if p.is_dir()):
            if any(_is_image(p) for p in below.rglob("*")):
                raise DataError(
                    f"{source}: folder {f'{folder.name}/{below.name}'!r} holds images, whose class "
                    "could be either folder; move them up, or give the folder whose folders are "
                    "the classes"
                )
            deeper.append(f"{folder.name}/{below.name}")
        mine = [p for p in files if _is_image(p)]
        if files and not mine:
            raise DataError(
                f"{source}: folder {folder.name!r} holds files, but no images of a known form "
                f"({_suffixes(files)}); give images their suffix, convert others to .png, or "
                "remove the folder"
            )
        if not mine:
            empty.append(folder.name)
        others += [p for p in files if not _is_image(p)]
        images[folder.name] = [f"{folder.name}/{p.name}" for p in mine]
    if not any(images.values()):
        raise DataError(f"{source}: holds no images <class>/<image>; give the folder above them")
    notes = [
        *_note(junk, "hidden or system file"),
        *_note(beside, "file beside the class folders", "files beside the class folders"),
        *_note(others, "file that is no image", "files that are no images"),
    ]
    if deeper:
        notes.append(f"{counted(len(deeper), 'folder')} without images left out: {quoted(deeper)}")
    if empty:
        notes.append(f"{counted(len(empty), 'class', 'classes')} without images: {quoted(empty)}")
    classes = _classes(place, list(images), source)
    number = {name: k for k, name in enumerate(classes)}
    names = tuple(name for mine in images.values() for name in mine)
    labels = tuple(number[clean(folder)] for folder, mine in images.items() for _ in mine)
    return ClassFolder(classes, names, labels, tuple(notes))


def _check_links(paths: list[Path], source: str) -> None:
    """Where a link leads nowhere, examples are missing, or a whole class."""
    dead = [p for p in paths if p.is_symlink() and not p.exists() and not is_junk(p.name)]
    if dead:
        name = f"{dead[0].parent.name}/{dead[0].name}"
        raise DataError(
            f"{source}: {name!r} is a link to what is not there ({counted(len(dead), 'such link')} "
            "in its folder); mend or remove it"
        )


def _classes(place: Path, folders: list[str], source: str) -> tuple[str, ...]:
    """In the order of classes.txt, or sorted."""
    names = [clean(name) for name in folders]
    if (double := twice(names)) is not None:
        raise DataError(
            f"{source}: two folders are named {double!r} but for white space or the way in which "
            "accents are written; rename one"
        )
    if not (place / CLASSES).is_file():
        return ordered(names)
    try:
        lines = (place / CLASSES).read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: {CLASSES} is not UTF-8 text; save it as such") from error
    classes = tuple(clean(line) for line in lines if line.strip())
    if twice(classes) is not None:
        raise DataError(f"{source}: {CLASSES} names a class twice; remove one of the lines")
    if unknown := set(names) - set(classes):
        raise DataError(
            f"{source}: folder {min(unknown)!r} is not in {CLASSES}; add or rename the class"
        )
    return classes


def _is_image(path: PurePath) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not is_junk(path.name)


def _note(paths: list[Path], thing: str, things: str = "") -> list[str]:
    return [f"{counted(len(paths), thing, things)} left out: {_suffixes(paths)}"] if paths else []


def _suffixes(paths: Iterable[PurePath]) -> str:
    """The kinds of files, the most frequent first; a name where it has no suffix."""
    kinds = Counter(p.suffix.lower() or p.name for p in paths).most_common()
    return ", ".join(kind for kind, _ in kinds[:5]) + (", …" if len(kinds) > 5 else "")
