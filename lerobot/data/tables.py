"""Episodes as Arrow tables: the columns of `data/` and `meta/`, with the notes that LeRobot's libraries look for."""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from lerobot.data.columns import row_shape
from lerobot.data.meta import Stats


def data_schema(features: dict[str, dict[str, Any]]) -> pa.Schema:
    """The columns of a data file, with the note by which Hugging Face `datasets` knows images from structs."""
    fields: list[pa.Field] = []
    notes: dict[str, Any] = {}
    for key, feature in features.items():
        if feature["dtype"] == "video":
            continue
        if feature["dtype"] == "image":
            fields.append(pa.field(key, pa.struct({"bytes": pa.binary(), "path": pa.string()})))
            notes[key] = {"_type": "Image"}
            continue
        kind, note = pa.from_numpy_dtype(np.dtype(feature["dtype"])), {"dtype": feature["dtype"], "_type": "Value"}
        shape = row_shape(feature)
        if len(shape) > 1:
            note = {"shape": list(shape), "dtype": feature["dtype"], "_type": f"Array{len(shape)}D"}
        for size in reversed(shape):
            kind = pa.list_(kind, size) if len(shape) == 1 else pa.list_(kind)
        fields.append(pa.field(key, kind))
        notes[key] = {"feature": note, "length": shape[0], "_type": "List"} if len(shape) == 1 else note
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": notes}})})


def arrow_column(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """A column of one episode."""
    if pa.types.is_struct(kind):
        return pa.array([{"bytes": _png(image), "path": f"frame-{i:06d}.png"} for i, image in enumerate(values)], kind)
    if values.ndim == 1:
        return pa.array(values, kind)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), kind.list_size).cast(kind)
    return pa.array(values.tolist(), kind)


def _png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def stats_columns(stats: list[Stats]) -> dict[str, pa.Array]:
    """One column a statistic of a feature: lists, three deep for images."""
    columns: dict[str, pa.Array] = {}
    for key, names in stats[0].items():
        for name in names:
            kind: pa.DataType = pa.int64() if name == "count" else pa.float64()
            for _ in names[name].shape:
                kind = pa.list_(kind)
            columns[f"stats/{key}/{name}"] = pa.array([episode[key][name].tolist() for episode in stats], kind)
    return columns


def tasks_table(tasks: list[str]) -> pa.Table:
    """Tasks with their sentence as pandas' index, which is where LeRobot looks for it."""
    columns = [
        {
            "name": "task_index",
            "field_name": "task_index",
            "pandas_type": "int64",
            "numpy_type": "int64",
            "metadata": None,
        },
        {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", "metadata": None},
    ]
    index = {
        "name": None,
        "field_name": None,
        "pandas_type": "unicode",
        "numpy_type": "object",
        "metadata": {"encoding": "UTF-8"},
    }
    note = {"index_columns": ["task"], "column_indexes": [index], "columns": columns, "attributes": {}}
    schema = pa.schema([("task_index", pa.int64()), ("task", pa.string())], {"pandas": json.dumps(note)})
    return pa.table([pa.array(range(len(tasks)), pa.int64()), pa.array(tasks, pa.string())], schema=schema)
