// Elements, numbers and colours. Text from programs goes through text nodes alone: nothing here,
// and nothing that uses it, ever parses a string as markup.

const el = (tag, props = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) made.style.setProperty(name, value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return made;
};

const clear = (node, ...children) => {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
};

const scaled = (value, units, base) => {
  let at = 0;
  while (value >= base && at < units.length - 1) { value /= base; at += 1; }
  const digits = value >= 100 || (at === 0 && Number.isInteger(value)) ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[at]}`;
};
const showBytes = (n) => scaled(n, ["B", "kB", "MB", "GB", "TB"], 1000);
const showCount = (n) => scaled(n, ["", "k", "M", "G", "T", "P"], 1000).trim();
const showSeconds = (s) => {
  if (!s) return "–";
  if (s < 1e-6) return `${(s * 1e9).toFixed(0)} ns`;
  if (s < 1e-3) return `${(s * 1e6).toFixed(s < 1e-5 ? 2 : 1)} µs`;
  return s < 1 ? `${(s * 1e3).toFixed(s < 1e-2 ? 2 : 1)} ms` : `${s.toFixed(2)} s`;
};
const showMs = (ms) => showSeconds(ms / 1e3);
const showShare = (x) => `${(100 * x).toFixed(x < 0.0995 ? 1 : 0)} %`;

// Time as colour, from calm to hot, beside the dearest kernel or what else is dearest; a bar or a
// number always stands by.
const heat = (share, most = index().most) => {
  const x = Math.min(1, Math.max(0, share / most)) ** 0.8;
  const hue = 205 - 190 * x;
  const dark = isDark();
  return `hsl(${hue} ${dark ? 55 : 70}% ${dark ? 24 + 14 * x : 88 - 22 * x}%)`;
};

const isDark = () => {
  const asked = document.documentElement.dataset.theme;
  return asked ? asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const palette = () => {
  const names = ["text", "soft", "line", "accent", "panel", "page", "glow", "mark"];
  return Object.fromEntries(names.map((name) => [name, colour(`--${name}`)]));
};

// A canvas that is drawn again at most once a frame, in the pixels of the screen.
class Painting {
  constructor(canvas, paint) {
    this.canvas = canvas;
    this.paint = paint;
    this.asked = false;
    this.milliseconds = 0;
    new ResizeObserver(() => this.ask()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.ask());
    addEventListener("themechange", () => this.ask());
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.now(); });
  }

  now() {
    const { canvas } = this;
    const [width, height, ratio] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio || 1];
    if (!width || !height) return;
    const started = performance.now();
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.paint(pen, width, height, palette());
    this.milliseconds = performance.now() - started;
  }
}

const FONT = "12px ui-sans-serif, system-ui, sans-serif";
const MONO = "12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";

const rounded = (pen, x, y, w, h, r) => {
  pen.beginPath();
  pen.roundRect(x, y, Math.max(w, 1), Math.max(h, 1), Math.min(r, w / 2, h / 2));
};

const fitted = (pen, text, width) => {
  if (width < 12) return "";
  if (pen.measureText(text).width <= width) return text;
  const each = pen.measureText("m").width * 0.62;
  let keep = Math.max(0, Math.floor(width / each) - 1);
  while (keep > 0 && pen.measureText(`${text.slice(0, keep)}…`).width > width) keep -= 1;
  return keep ? `${text.slice(0, keep)}…` : "";
};

const baseName = (file) => file.split("/").pop();
