"""Colours and type of the picture: one sheet for light and dark, all names inside `svg.cbt`."""

__all__ = ["LEGEND", "STYLE"]

LEGEND = {
    "pcie": "PCIe", "nvlink": "NVLink", "xgmi": "xGMI", "c2c": "inside one chip", "socket": "between sockets",
    "memory": "memory", "network": "network",
    "slow": "slower now than it can be (idle links slow down)", "hot": "highlighted",
}  # fmt: skip
"""Line styles in the order of the legend."""

# Hues of Okabe and Ito (blue, bluish green, orange, vermilion), which people with colour blindness tell apart, softened
# for areas; a slow link is dashed and says so, so that colour is never the only sign.
_LIGHT = {
    "page": "#ffffff", "ink": "#1f2733", "muted": "#5c6675", "line": "#8a94a3", "nvlink": "#11806a", "c2c": "#7b6ca8",
    "net": "#a8741a", "slow": "#c2410c", "hot": "#b0185f", "gpu": "#dcebf9", "gpuline": "#2f72ad", "nic": "#f8ecd2",
    "nicline": "#b07d1e", "switch": "#ebe7f5", "switchline": "#7b6ca8", "root": "#f2f4f7", "rootline": "#98a2b1",
    "socket": "#e3e7ec", "socketline": "#6b7686", "nvsw": "#d8efe6", "nvswline": "#11806a",
}  # fmt: skip
_DARK = {
    "page": "#14181e", "ink": "#e8ecf1", "muted": "#a3adba", "line": "#7c8796", "nvlink": "#3fbf9f", "c2c": "#a99be0",
    "net": "#d9a441", "slow": "#ff8a4c", "hot": "#ff6fae", "gpu": "#1d3550", "gpuline": "#5fa3de", "nic": "#3c301a",
    "nicline": "#d9a441", "switch": "#2f2a45", "switchline": "#a99be0", "root": "#222831", "rootline": "#6d7786",
    "socket": "#2b323c", "socketline": "#8b96a5", "nvsw": "#163b33", "nvswline": "#3fbf9f",
}  # fmt: skip


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"--cbt-{name}:{value}" for name, value in colours.items())


_RULES = """
svg.cbt{max-width:100%;height:auto;font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
svg.cbt .page{fill:var(--cbt-page)}
svg.cbt text{fill:var(--cbt-ink);text-anchor:middle;font-size:11px}
svg.cbt text.h{text-anchor:start;font-size:17px;font-weight:600}
svg.cbt text.m{text-anchor:start;font-size:12px;fill:var(--cbt-muted)}
svg.cbt text.n{font-size:12.5px;font-weight:600}
svg.cbt text.d{font-size:10.5px;fill:var(--cbt-muted)}
svg.cbt text.slow{fill:var(--cbt-slow);font-weight:600}
svg.cbt .b{stroke-width:1.25}
svg.cbt .gpu{fill:var(--cbt-gpu);stroke:var(--cbt-gpuline)}
svg.cbt .nic{fill:var(--cbt-nic);stroke:var(--cbt-nicline)}
svg.cbt .b.switch{fill:var(--cbt-switch);stroke:var(--cbt-switchline)}
svg.cbt .root_port,svg.cbt .host_bridge{fill:var(--cbt-root);stroke:var(--cbt-rootline)}
svg.cbt .b.socket{fill:var(--cbt-socket);stroke:var(--cbt-socketline)}
svg.cbt .nvswitch{fill:var(--cbt-nvsw);stroke:var(--cbt-nvswline)}
svg.cbt .l{fill:none;stroke:var(--cbt-line);stroke-linecap:butt}
svg.cbt .l.nvlink,svg.cbt .l.xgmi{stroke:var(--cbt-nvlink)}
svg.cbt .l.c2c{stroke:var(--cbt-c2c);stroke-dasharray:2 3}
svg.cbt .l.network{stroke:var(--cbt-net)}
svg.cbt .l.socket{stroke:var(--cbt-socketline)}
svg.cbt .l.memory{stroke:var(--cbt-rootline);stroke-dasharray:1 3}
svg.cbt .l.slow{stroke:var(--cbt-slow);stroke-dasharray:7 4}
svg.cbt .l.hot{stroke:var(--cbt-hot);stroke-width:7px}
"""

STYLE = (
    f"svg.cbt{{color-scheme:light dark;{_variables(_LIGHT)}}}"
    f"@media screen and (prefers-color-scheme:dark){{svg.cbt{{{_variables(_DARK)}}}}}"
    f'[data-theme="light"] svg.cbt{{{_variables(_LIGHT)}}}[data-theme="dark"] svg.cbt{{{_variables(_DARK)}}}'
    + _RULES.replace("\n", "")
)
"""Text of the `<style>` element; a page that sets `data-theme` to light or dark overrules the reader's system."""
