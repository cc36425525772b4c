"""What docs/how_to/clusters.md shows is what comes out."""

import json
import re
from pathlib import Path

from balancer.simulate import read_cluster

PAGE = Path(__file__).parent.parent.parent / "docs" / "how_to" / "clusters.md"


def test_the_cluster_file(tmp_path):
    (text,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "cluster.json").write_text(text)
    found = read_cluster(str(tmp_path / "cluster.json"))
    h100 = read_cluster("h100")
    for name in json.loads(text):
        assert getattr(found, name) == getattr(h100, name)
