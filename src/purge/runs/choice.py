"""Which data a run has, and how to read it: what run.json keeps, so that the data can be found again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import Tensor

from purge.core.errors import DataError, brief
from purge.core.plugins import current_folder_importable, named
from purge.data.catalog import DATASETS
from purge.data.formats.tables import ENDINGS, is_table, read_table
from purge.data.load import divided, load_parts
from purge.data.own import from_function, is_function
from purge.data.samples import Samples
from purge.data.table import Encode, load_table
from purge.models import builders

OF_TABLES = ("label_column", "text_column", "id_column", "test_file")
NOT_OF_FUNCTIONS = ("size", "mean", "std", "transform", "stream", *OF_TABLES)


@dataclass(frozen=True)
class DataChoice:
    """Which data, and how to read it: run.json says so, and the data can be read again."""

    data: str  # a name, an absolute path, or module:function
    data_dir: str | None = None
    size: int | None = None
    split_seed: int = 0
    skip_bad: bool = False
    mean: tuple[float, ...] | None = None  # None: that of the data
    std: tuple[float, ...] | None = None
    label_column: str | None = None  # of a table
    text_column: str | None = None  # None: all other columns, which are numbers
    id_column: str | None = None  # whose each row is
    test_file: str | None = None  # None: see held_out
    held_out: bool | None = True  # a fifth of data without a test part; None: nobody knows, so it is refused
    tokenizer: str | None = None  # the folder that makes tokens of the texts
    transform: str | None = None  # module:function, applied to batches of images
    stream: bool | None = None  # decode images when they are needed; None: if they are large

    def load(self, *, progress: bool) -> tuple[Samples, Samples | None]:
        """The training and test data; None for the test data if all of it was trained on."""
        if is_function(self.data):
            return self._from_function()
        images = self.data in DATASETS or not is_table(Path(self.data)) or self.data.endswith(".parquet")
        if self.label_column is not None or not images:
            return self._from_table()
        self._refuse(f"a table with --{{}}, a file of {', '.join(ENDINGS)}", OF_TABLES)
        parts = load_parts(
            self.data, data_dir=self.data_dir, size=self.size, skip_bad=self.skip_bad, mean=self.mean,
            std=self.std, progress=progress, transform=self._transform(), stream=self.stream,
        )  # fmt: skip
        if "all" not in parts:
            self._refuse_all_trained()
            return parts["train"], parts["test"]
        self._check_held_out("give it a test part, as DIR/test beside DIR/train")
        return divided(parts["all"], self.split_seed) if self.held_out else (parts["all"], None)

    def _check_held_out(self, fix: str) -> None:
        """Refuse to call a part of the data unseen that the model may have been trained on."""
        if self.held_out is None:
            name = Path(self.data).name
            raise DataError(
                "test data that the checkpoint was not trained on",
                f"{name} alone",
                f"{fix}, pass --all-trained if it was trained on all of {name}, or the --split-seed by which "
                "purge held a fifth out",
            )

    def _refuse_all_trained(self) -> None:
        if self.held_out is False:
            got = f"--all-trained for {Path(self.data).name}, which has test data"
            raise DataError("data without test data for --all-trained", got, "leave it out")

    def _from_table(self) -> tuple[Samples, Samples | None]:
        """Rows of a file."""
        path = Path(self.data)
        if not is_table(path):
            fix = "leave it out, or name a table"
            raise DataError(f"a file of {', '.join(ENDINGS)} for --label", brief(path.name), fix)
        if self.label_column is None:
            fix = f"pass --label with one of {', '.join([*read_table(path).columns][:20])}"
            raise DataError(f"the column of the classes in {path.name}", "no --label", fix)
        self._refuse("a table without --{}, which is for images", ("size", "transform", "stream"))
        if self.test_file is None:
            self._check_held_out("name it with --test FILE")
        encode: Encode | None = None
        names: tuple[str, ...] = ()
        if self.text_column is not None:
            self._refuse("texts without --{}", ("mean", "std"))
            if self.tokenizer is None:
                fix = "pass --model hf:DIR, or leave out --text"
                raise DataError(
                    "a model of Hugging Face for --text, whose tokenizer is in DIR", "another", fix
                )
            encode, names = builders.tokenizer(self.tokenizer)
        return load_table(
            path, label=self.label_column, text=self.text_column, id=self.id_column, encode=encode,
            test=None if self.test_file is None else Path(self.test_file), names=names,
            split_seed=self.split_seed, hold_out=self.held_out is not False, mean=self.mean, std=self.std,
        )  # fmt: skip

    def _transform(self) -> Callable[[Tensor], Tensor] | None:
        """The user's own function of a batch of images; whoever chose it has seen to it that it may run."""
        if self.transform is None:
            return None
        if not is_function(self.transform):
            fix = "write --transform my_module:my_function"
            raise DataError("module:function as --transform", brief(self.transform), fix)
        with current_folder_importable():
            found = named(self.transform, DataError)
        if not callable(found):
            fix = "name a function from a batch of images to a batch"
            raise DataError(f"a function as {self.transform}", type(found).__name__, fix)
        return cast("Callable[[Tensor], Tensor]", found)

    def _refuse(self, what: str, fields: Sequence[str]) -> None:
        """Refuse options that this kind of data does not have."""
        for name in fields:
            if getattr(self, name) is not None:
                option = name.partition("_")[0]
                raise DataError(what.format(option), f"--{option} for {Path(self.data).name}", "leave it out")

    def _from_function(self) -> tuple[Samples, Samples]:
        self._refuse_all_trained()
        self._refuse(f"data of a function without --{{}}; prepare it in {self.data}", NOT_OF_FUNCTIONS)
        return from_function(self.data)
