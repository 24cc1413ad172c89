"""Models for tables and images, as descriptions of names and numbers, and back."""

from __future__ import annotations

from hdnn.models.image_config import ImageConfig
from hdnn.models.model import ImageClassifier, Model
from hdnn.models.persistence import networks
from hdnn.models.persistence.checks import Description, Tensors, expect, floating, whole
from hdnn.models.stems import Augmentation, Scaler


def describe_model(model: Model, tensors: Tensors) -> Description:
    """What a model is; tables of parameter numbers are added to its tensors."""
    augmentation = model.augmentation
    return {
        "network": networks.describe(model.network, tensors),
        "outputs": model.head.out_features,
        "task": model.task,
        "classes": model.classes,
        "feature_names": model.feature_names,
        "augmentation": None
        if augmentation is None
        else {
            "features": augmentation.features,
            "width": augmentation.width,
            "mode": augmentation.mode,
        },
    }


def build_model(description: Description, tensors: Tensors) -> Model:
    """The model of a description, with weights still to be loaded."""
    patterns = {name: tensor for name, tensor in tensors.items() if networks.is_pattern(name)}
    inner = {k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")}
    network = networks.build(description["network"], inner | patterns)
    given, outputs = description["augmentation"], whole(description["outputs"], "outputs", 1)
    expect(tensors, "head.weight", (outputs, network.field.layout.width), "the output layer")
    scaler = None
    if "scaler.mean" in tensors:
        mean, scale = (floating(tensors[f"scaler.{k}"], "the scaler") for k in ("mean", "scale"))
        scaler = Scaler(mean.clone(), scale.clone())
    return Model(
        network,
        outputs,
        None if given is None else Augmentation(**given),
        scaler,
        task=description["task"],
        classes=description["classes"],
        feature_names=description["feature_names"],
    )


def describe_classifier(model: Model) -> Description:
    """What an image classifier is."""
    assert model.config is not None
    return {"config": model.config.to_dict(), "classes": model.classes}


def build_classifier(description: Description, tensors: Tensors) -> Model:
    """The image classifier of a description, with weights still to be loaded."""
    config = ImageConfig.from_dict(description["config"])
    shape = (config.classes, config.features)
    head = floating(expect(tensors, "head.weight", shape, "the output layer"), "the output layer")
    return ImageClassifier(config, classes=description["classes"], dtype=head.dtype).eval()
