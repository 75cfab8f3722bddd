from maxup.lab.models import create_model


def test_the_number_of_parameters():
    model = create_model("mlp", shape=(1, 8, 8), num_classes=10, hidden=[32, 16])
    assert sum(p.numel() for p in model.parameters()) == 64 * 32 + 32 + 32 * 16 + 16 + 16 * 10 + 10
