"""A width as a device takes it: a folder of transformers, or one ONNX file with int8 weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medapps.errors import MedappsError
from medapps.serve.text_onnx import write_onnx
from medapps.store import writing
from medapps.text.elastic import submodel
from medapps.text.model import TextModel, write_pretrained

FILES = {"safetensors": "model.safetensors", "onnx": "model.int8.onnx"}


def export(
    model: TextModel, width: int, form: str, folder: Path, *, force: bool = False
) -> dict[str, Any]:
    """Write one width into a folder; says how large it is."""
    if form not in FILES:
        raise MedappsError(f"There is no format {form!r}.", fix=f"Take one of {', '.join(FILES)}.")
    alone, choice = submodel(model.net, width).eval(), {"width": width, "format": form}
    with writing(folder, kind="textexport", config=choice, force=force) as draft:
        write_pretrained(alone, model.tokenizer, draft.folder)
        if form == "onnx":
            draft.path(FILES["safetensors"]).unlink()
            write_onnx(alone, draft.path(FILES["onnx"]))
        draft.about = dict(model.about) | choice
    size = (folder / FILES[form]).stat().st_size
    return choice | {"file": FILES[form], "bytes": size, "parameters": alone.num_parameters()}
