// Charts over time and over windows; the colours follow the scheme.

import uPlot from "./vendor/uPlot.esm.js";
import { share, short } from "./words.js";

const drawn = [];
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const FONT = "11px system-ui, sans-serif";

function axis(values, size) {
  const line = { stroke: () => color("line"), width: 1 };
  return { stroke: () => color("soft"), font: FONT, grid: line, ticks: { ...line, size: 4 }, values, size, gap: 3 };
}

function sizeOf(element) {
  const legend = element.classList.contains("tall") ? (element.clientWidth < 480 ? 58 : 34) : 0;
  return { width: Math.max(120, element.clientWidth), height: element.clientHeight - legend };
}

function chart(element, { series, time, range, value }) {
  const options = {
    ...sizeOf(element),
    cursor: { y: false },
    scales: { x: { time }, y: { range } },
    axes: [axis(time ? undefined : (_, splits) => splits.map((v) => (Number.isInteger(v) ? v : "")), 24), axis((_, splits) => splits.map(tick), 46)],
    series: [
      time ? {} : { label: "window", value: (_, v) => v ?? "–" },
      ...series.map(({ label, tone, dash }) => ({
        label, dash, width: 2, stroke: () => color(tone), spanGaps: true, points: { size: 5 }, value: (_, v) => value(v),
      })),
    ],
  };
  const plot = new uPlot(options, [[], ...series.map(() => [])], element);
  drawn.push(plot);
  new ResizeObserver(() => plot.setSize(sizeOf(element))).observe(element);
  return plot;
}

const tick = (value) => (value === null ? "" : Number(value.toPrecision(4)).toLocaleString("en"));

// From zero on, with some room above.
const fromZero = (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.1];
const loose = (_, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low - 0.1 * (high - low), high + 0.1 * (high - low)]);

export const KINDS = ["model", "served", "index", "popularity"];

export function recallChart(element) {
  const series = KINDS.map((kind) => ({ label: kind, tone: kind, dash: kind === "popularity" ? [6, 4] : undefined }));
  const plot = chart(element, { series, time: false, range: () => [0, 1.02], value: share });
  return (recalls) => plot.setData([recalls.map((one) => one.window), ...KINDS.map((kind) => recalls.map((one) => one[kind]))]);
}

export function timeChart(element, name, tone, zero) {
  const plot = chart(element, { series: [{ label: name, tone }], time: true, range: zero ? fromZero : loose, value: short });
  return (points) => plot.setData([points.time, points[name] ?? points.time.map(() => null)]);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((plot) => plot.redraw()));
