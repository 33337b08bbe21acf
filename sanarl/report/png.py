"""The page's curves as PNG files, for papers."""

from pathlib import Path
from typing import Any

from sanarl.errors import UserError

WIDTH, HEIGHT, DPI = 4.2, 2.8, 300
COLOURS = ("#0b57d0", "#b8430a", "#0a7a4b", "#8b2fc9", "#a3246e", "#00707f", "#7a5c00", "#4d5560")
STYLES = ("-", "--", ":", "-.")


def write(found: dict[str, Any], folder: Path) -> list[Path]:
    """Write ``KEY.png`` for every chart of a document; see ``sanarl.report.document``.

    Returns:
        The files.

    Raises:
        UserError: when matplotlib is missing or the folder cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("sanarl report --png needs matplotlib: pip install 'sanarl[plots]'") from error
    matplotlib.use("Agg")
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for section in found["sections"]:
            for chart in section["charts"]:
                path = folder / f"{chart['key'].replace('/', '-')}.png"
                _plot(found, chart, path)
                files.append(path)
    except OSError as error:
        raise UserError(f"sanarl report --png: {folder} cannot be written: {error.strerror or error}") from error
    return files


def _alpha(band: str) -> float:
    return 0.1 if band == "samples" else 0.2


def _plot(found: dict[str, Any], chart: dict[str, Any], path: Path) -> None:
    """One chart: a colour for every run, or for every metric of a single run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    runs = found["runs"]
    for r, run in enumerate(runs):
        for name in chart["bands"]:
            band = run["band"].get(name)
            if band and (len(runs) == 1 or name != "samples"):
                colour = COLOURS[r % len(COLOURS)]
                axes.fill_between(band["x"], band["lo"], band["hi"], color=colour, alpha=_alpha(name), linewidth=0)
        for m, metric in enumerate(chart["metrics"]):
            curve = run["curves"].get(metric)
            if curve is None:
                continue
            several = len(runs) > 1
            label = " ".join(part for part in (run["name"] * several, metric * (len(chart["metrics"]) > 1)) if part)
            axes.plot(
                curve["x"],
                [float("nan") if y is None else y for y in curve["y"]],
                color=COLOURS[(r if several else m) % len(COLOURS)],
                linestyle=STYLES[(m if several else 0) % len(STYLES)],
                linewidth=1.4,
                marker="o" if chart["marks"] and len(curve["x"]) <= 60 else None,
                markersize=3,
                label=label.replace("$", r"\$") or None,
            )
    for name in chart["bands"]:
        if len(runs) == 1 and name in runs[0]["band"]:
            axes.fill_between([], [], color=COLOURS[0], alpha=_alpha(name), linewidth=0, label=found["bands"][name])
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title((chart["title"] or chart["metrics"][0]).replace("$", r"\$"), fontsize=10)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=DPI)
