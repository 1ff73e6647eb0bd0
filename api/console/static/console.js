// What a page does beside being read: live parts, keys, copying, times that go on. Every page can be read without it.
"use strict";

const TICK_MS = 2000;
const SETTLE_MS = 100; // several events of one moment are one
const AT_LEAST_MS = 30000; // with events, too: some figures change by themselves
const STREAM_AGAIN_MS = 60000; // after the stream was refused
const ZONE_COOKIE = "tickover-zone";
const root = document.body.dataset.root;

// Live parts ask again when an event says that what they show has changed; where no events come, every 2 s. A hidden page
// asks nothing and holds no stream, and nothing moves under an open form.
const isBusy = () => document.querySelector("details.confirm[open], dialog[open]") !== null;
let stream = null, hears = false, hasHeard = false, isDue = false, askedAt = Date.now(), streamAt = 0, settling;
const tick = () => {
  if (document.visibilityState !== "visible" || isBusy()) return;
  isDue = false;
  askedAt = Date.now();
  document.body.dispatchEvent(new Event("tick"));
};
const hear = () => {
  hears = hasHeard = isDue = true;
  clearTimeout(settling);
  settling = setTimeout(tick, SETTLE_MS);
};
const leave = (again) => {
  stream?.close();
  stream = null;
  hears = hasHeard = false;
  streamAt = Date.now() + again;
};
const listen = () => {
  const names = new Set([...document.querySelectorAll("[data-events]")].flatMap((part) => part.dataset.events.split(" ")));
  if (stream || !names.size || document.visibilityState !== "visible" || Date.now() < streamAt) return;
  stream = new EventSource(`${root}events?${[...names].map((name) => `event=${name}`).join("&")}`);
  for (const name of [...names, "reset"]) stream.addEventListener(name, hear);
  // Something in between may let the head through and keep the rest: only who has heard something trusts the stream.
  stream.onopen = () => { hears = hasHeard; };
  stream.onerror = () => { if (stream?.readyState === EventSource.CLOSED) leave(STREAM_AGAIN_MS); else hears = false; };
};
listen();
setInterval(() => {
  listen();
  if (isDue || !hears || Date.now() - askedAt >= AT_LEAST_MS) tick();
}, TICK_MS);
document.addEventListener("visibilitychange", () => { if (document.visibilityState === "visible") listen(); else leave(0); });

// What cannot be refreshed says so: old figures look like new ones.
document.addEventListener("htmx:afterRequest", (event) => {
  const { requestConfig, successful } = event.detail, stale = document.getElementById("stale");
  if (!requestConfig.elt.matches("[data-events]")) return;
  if (!successful && stale.hidden) stale.textContent = `Not refreshed since ${clock.format(heardAt)}: there was no answer. It is tried again.`;
  if (successful) heardAt = Date.now();
  else isDue = true; // what the event told of is still to be shown
  stale.hidden = successful;
});
const clock = new Intl.DateTimeFormat("en-GB", { timeZone: document.body.dataset.zone, timeStyle: "medium" });
let heardAt = Date.now();

// Who moves by keys stays where they are when a live part comes anew: the same link or button, and the same row.
const FOCUSED = "a, button, input, select, textarea, summary, [tabindex]";
const sign = (one) => [one.tagName, one.getAttribute("href"), one.getAttribute("name"), one.dataset.copy, one.textContent].join("|");
let kept = null;
document.addEventListener("htmx:beforeSwap", (event) => {
  const part = event.detail.target, all = [...part.querySelectorAll(FOCUSED)], at = all.indexOf(document.activeElement);
  kept = { id: part.id, at, sign: at < 0 ? "" : sign(all[at]), row: part.querySelector("tr.at a")?.getAttribute("href") };
});
document.addEventListener("htmx:afterSwap", () => {
  const part = kept && document.getElementById(kept.id);
  if (!part) return;
  const { at, row } = kept, like = [...part.querySelectorAll(FOCUSED)].map((one, i) => [one, i]).filter(([one]) => sign(one) === kept.sign);
  like.sort((one, other) => Math.abs(one[1] - at) - Math.abs(other[1] - at));
  if (row) [...part.querySelectorAll("tr a")].find((one) => one.getAttribute("href") === row)?.closest("tr").classList.add("at");
  if (at >= 0 && document.activeElement === document.body) like[0]?.[0].focus({ preventScroll: true });
  kept = null;
});

// A form is sent once: a second click, while the answer is on its way, would do it again. One that is too large is kept:
// its answer would be a page without it.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  const size = new URLSearchParams(new FormData(form, event.submitter)).toString().replaceAll("%0A", "%0D%0A").length; // as it is sent
  const isTooLarge = size > Number(document.body.dataset.most);
  document.getElementById("too-large").hidden = !isTooLarge;
  if (form.dataset.sent || isTooLarge) event.preventDefault();
  else form.dataset.sent = "yes";
});
addEventListener("pageshow", () => document.querySelectorAll("form[data-sent]").forEach((form) => delete form.dataset.sent));

// The browser's own zone, also after a journey, unless the address says another.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const zoneCookie = `${ZONE_COOKIE}=${zone}`;
const hasZone = () => document.cookie.split("; ").includes(zoneCookie);
if (zone && !hasZone()) {
  document.cookie = `${zoneCookie}; path=${root}; samesite=strict; max-age=31536000`;
  if (hasZone() && zone !== document.body.dataset.zone && !location.search.includes("zone=") && !document.body.dataset.sent) location.reload();
}

// Relative times go on between two answers. The server's clock counts, not this machine's.
const ahead = Date.now() - Number(document.body.dataset.now);
const UNITS = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]];
const duration = (ms) => {
  const parts = [];
  for (const [size, unit] of UNITS) {
    if (ms >= size && parts.length < 2) { parts.push(`${Math.floor(ms / size)} ${unit}`); ms %= size; }
    else if (parts.length) break;
  }
  return parts.join(" ");
};
setInterval(() => {
  if (document.visibilityState !== "visible") return;
  for (const time of document.querySelectorAll("time[data-ms]")) {
    const distance = Number(time.dataset.ms) - (Date.now() - ahead);
    const shown = time.querySelector(".rel");
    if (shown) shown.textContent = Math.abs(distance) < 1000 ? "now" : distance > 0 ? `in ${duration(distance)}` : `${duration(-distance)} ago`;
  }
}, 1000);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "Copied"; }
  catch { button.textContent = "Select and copy"; }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-select-all]")) return;
  for (const box of event.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
});

// Something is written in a form: going back would lose it.
const isWritten = () => [...document.querySelectorAll("form[method=post] :is(input:not([type=hidden]), textarea, select)")].some((field) => {
  if (field.matches("textarea")) return field.value.trim() !== "";
  if (field.matches("select")) return field.options[field.selectedIndex]?.defaultSelected === false && field.selectedIndex > 0;
  return field.type === "checkbox" || field.type === "radio" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;
});

// Keys. None is taken while somebody writes.
const rows = () => [...document.querySelectorAll("table[data-keys] tbody tr")];
const move = (step) => {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.classList.contains("at"));
  const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  all.forEach((row) => row.classList.remove("at"));
  next.classList.add("at");
  (next.querySelector("a, input") || next).focus();
  next.scrollIntoView({ block: "nearest" });
};
const KEYS = {
  "/": () => document.getElementById("search")?.focus(),
  "j": () => move(1),
  "k": () => move(-1),
  "x": () => document.querySelector("tr.at input[type=checkbox]")?.click(),
  "t": () => document.querySelectorAll(".chart .table-key").forEach((key) => key.click()),
  "?": () => document.getElementById("keys")?.showModal(),
};
document.addEventListener("keydown", (event) => {
  const writes = event.target.matches("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape" && writes) return event.target.blur();
  if (writes || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    const open = document.querySelector("details[open]");
    if (open) open.removeAttribute("open");
    else if (!isWritten()) history.back();
    return;
  }
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});
