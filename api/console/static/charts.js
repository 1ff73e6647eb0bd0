// Charts of the tables that the page has already: uPlot draws them, and the table is one key away.
"use strict";

const HEIGHT = 200;

const read = (figure) => {
  const body = [...figure.querySelectorAll("tbody tr")];
  const columns = body.length ? body[0].children.length : 0;
  return [...Array(columns).keys()].map((i) => body.map((row) => {
    const cell = row.children[i];
    if (i === 0) return Number(cell.dataset.ms) / 1000;
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  }));
};

const stacked = (data) => {
  const sums = data[0].map(() => 0);
  return [data[0], ...data.slice(1).map((values) => values.map((value, i) => (sums[i] += value ?? 0)))];
};

// A resolved colour: a canvas knows nothing of light-dark().
const resolved = (name) => {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
};

// What is drawn, by its figure. uPlot listens to the window: without destroy() it would stay, with its figure, for ever.
const drawn = new Map();
const asTable = new Set(); // names of those that somebody reads as tables: a refresh leaves them so
const forget = (figure) => { drawn.get(figure)?.destroy(); drawn.delete(figure); };
const forgetGone = () => [...drawn.keys()].filter((figure) => !figure.isConnected).forEach(forget);

const draw = (figure) => {
  forget(figure);
  const plot = figure.querySelector(".plot");
  let data = read(figure);
  if (!data.length || typeof uPlot === "undefined") return;
  const names = [...figure.querySelectorAll("thead th")].slice(1).map((cell) => cell.textContent);
  const colours = figure.dataset.colours.split(" ");
  const bars = figure.dataset.kind === "bars";
  if (bars) data = stacked(data);
  const mark = figure.querySelector("[data-mark]");
  const zone = document.body.dataset.zone;
  const clock = new Intl.DateTimeFormat("en-GB", { timeZone: zone, hour: "2-digit", minute: "2-digit" });
  const series = names.map((label, i) => ({
    label, stroke: resolved(colours[i]), width: bars ? 0 : 2, fill: bars ? resolved(colours[i]) : undefined,
    points: { show: false }, paths: bars ? uPlot.paths.bars({ size: [0.9, 24] }) : undefined,
  }));
  if (mark) { data.push(data[0].map(() => Number(mark.dataset.mark))); series.push({ label: "limit", stroke: resolved("bad"), width: 1, dash: [4, 3], points: { show: false } }); }
  // Stacked bars are drawn from the tallest sum to the smallest.
  if (bars) { const sums = data.splice(1, names.length).reverse(); data.splice(1, 0, ...sums); series.splice(0, names.length, ...series.slice(0, names.length).reverse()); }
  const axis = { stroke: resolved("soft"), grid: { stroke: resolved("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  plot.replaceChildren();
  const name = figure.querySelector("figcaption").firstChild.textContent;
  const key = figure.querySelector(".table-key");
  const show = () => {
    plot.hidden = asTable.has(name);
    figure.querySelector(".figures").hidden = !plot.hidden;
    key.textContent = plot.hidden ? "as a chart" : "as a table";
  };
  key.hidden = false;
  key.onclick = () => { if (!asTable.delete(name)) asTable.add(name); show(); };
  show();
  drawn.set(figure, new uPlot({
    width: figure.clientWidth, height: HEIGHT, legend: { show: false }, cursor: { show: false },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), zone),
    scales: { y: { range: (_, low, high) => [0, Math.max(high, Number(mark?.dataset.mark ?? 0), 1) * 1.05] } },
    axes: [{ ...axis, grid: { show: false }, values: (_, times) => times.map((time) => clock.format(time * 1000)) }, axis], series: [{}, ...series],
  }, data, plot));
};

const drawAll = () => document.querySelectorAll("figure.chart").forEach(draw);
document.addEventListener("DOMContentLoaded", drawAll);
document.addEventListener("htmx:afterSwap", (event) => {
  forgetGone();
  event.target.parentElement?.querySelectorAll("figure.chart").forEach(draw);
});
let resizing;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(drawAll, 200); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
