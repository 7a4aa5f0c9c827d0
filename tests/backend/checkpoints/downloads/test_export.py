"""A download is a model that others can load: written by the trainer, fetched, opened by transformers."""

import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import LazySettings

from backend.checkpoints import verification
from backend.checkpoints.downloads.export import exported_parts
from backend.checkpoints.models import Checkpoint
from backend.checkpoints.services import record_checkpoint
from backend.jobs.models import Job
from engine.spec.facts import CheckpointSaved
from engine.spec.job import JobSpec

pytestmark = pytest.mark.django_db


@pytest.mark.long_except("0")
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_download_loads_in_transformers_with_saved_weights(
    lora_rank: int,
    job: Job,
    api: Any,
    settings: LazySettings,
    tmp_path: Path,
    now: datetime,
    make_spec: Callable[..., JobSpec],
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file

    from engine.models.loading import DEMO_FOLDER
    from engine.training.checkpoint.folder import verify_checkpoint
    from engine.training.factory import build_trainer
    from engine.training.settings import TrainerSettings

    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, store_dir=tmp_path / "store", store_url="")
    spec = make_spec(trainer={"lora_rank": lora_rank})
    trainer = build_trainer(DEMO_FOLDER, TrainerSettings.of(spec), device="cpu")
    folder = tmp_path / "store/jobs" / job.pk / "attempt-1-fence-1/checkpoints/step-000001"
    trainer.prepare_save(folder)()
    digest = verify_checkpoint(folder)
    saved = CheckpointSaved(step=1, version=1, uri=folder.as_uri(), manifest_sha256=digest, num_bytes=1)
    checkpoint = record_checkpoint(job, 1, saved, now=now)
    assert verification.verify_due(now=now) == 1

    url = api.post(f"/checkpoints/{checkpoint.pk}/download").json()["url"]
    content = b"".join(api.client.get(urlsplit(url).path))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Debian 12's has none
        archive.extractall(tmp_path / "fetched", **safely)
    (fetched,) = (tmp_path / "fetched").iterdir()
    assert not (fetched / "optimizer.safetensors").exists()
    model = transformers.AutoModelForCausalLM.from_pretrained(fetched)
    tokenizer = transformers.AutoTokenizer.from_pretrained(fetched)
    stored = load_file(folder / "model.safetensors")
    loaded = model.state_dict()
    assert stored and all(torch.equal(loaded[name], tensor) for name, tensor in stored.items())
    ids = tokenizer("1 2 3", return_tensors="pt")["input_ids"]
    assert model(ids).logits.shape[:2] == ids.shape


def test_export_of_several_ranks_omits_training_state() -> None:
    model = ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    model += ["model.safetensors.index.json", "adapter/adapter_model.safetensors"]
    training = ["state-00001-of-00002.safetensors", "state-00002-of-00002.safetensors", "trainer.json"]
    part = {"num_bytes": 1, "sha256": "0" * 64}
    checkpoint = Checkpoint(parts=dict.fromkeys([*model, *training], part))
    assert exported_parts(checkpoint).keys() == set(model)
