// Charts with one x axis: they share the cursor, the zoom and the highlighted run.

export class ChartGroup {
  /** `onZoom` is called with [from, to], or null, after every zoom: it may load the points of that part. */
  constructor(onZoom) {
    this.onZoom = onZoom;
    this.charts = [];
    this.cursor = null;
    this.zoom = null;
  }

  add(chart) {
    this.charts.push(chart);
  }

  /** Show the cursor at `x` in all charts; `pointed` is the chart under the pointer or with the focus. */
  moveCursor(x, pointed) {
    this.cursor = x;
    for (const each of this.charts) each.readout.show(x, each === pointed);
    if (x === null) this.highlight(null);
  }

  /** Show x from `range[0]` to `range[1]` in all charts; null: everything. */
  zoomTo(range) {
    if (range === null && this.zoom === null) return;
    this.zoom = range;
    for (const each of this.charts) each.redraw();
    this.onZoom(range);
  }

  zoomOut(low, high) {
    if (!this.zoom) return;
    const margin = (high - low) / 2;
    this.zoomTo([low - margin, high + margin]);
  }

  highlight(id) {
    for (const each of this.charts) each.highlight(id);
    for (const each of document.querySelectorAll("[data-legend]")) each.classList.toggle("near", each.dataset.legend === id);
  }

  destroy() {
    for (const each of this.charts) each.destroy();
    this.charts = [];
  }
}
