// Colours of runs: twelve that are told apart by people with colour-blindness as well, then evenly turned hues.

const LIGHT = "#1f6fd6 #d1570a #14805e #b23a86 #8a6a00 #6a4bc4 #c22f3d #0e8496 #5f6b1a #96501f #3c4b8c #6b6b6b".split(" ");
const DARK = "#5aa2ff #ff9a52 #3ecf9e #f08ac4 #e2bd45 #ab93ff #ff7d86 #4cc9dc #b7c75a #e0a172 #93a5f0 #b5b5b5".split(" ");
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

/** Return whether the page is dark now: by the user's choice, or else by the system's. */
export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Return the colour of the run with this index, a different one for each of 200. */
export function runColour(index, dark = isDark()) {
  if (index < LIGHT.length) return (dark ? DARK : LIGHT)[index];
  // The golden angle keeps successive hues far apart; lightness tells the rounds of it apart.
  const turn = index - LIGHT.length;
  const hue = (25 + turn * 137.508) % 360;
  const lightness = (dark ? [72, 82, 62] : [46, 36, 54])[turn % 3];
  return `hsl(${hue.toFixed(1)} ${dark ? 75 : 65}% ${lightness}%)`;
}

/** Return the dashes of a run's curve: solid for the first dozen, so that colour is not the only difference. */
export function runDash(index) {
  return DASHES[Math.floor(index / LIGHT.length) % DASHES.length];
}

/** Return the value of a colour variable of the page, as a canvas understands it. */
export function themeColour(name) {
  const probe = document.getElementById("top");
  probe.style.setProperty("outline-color", `var(--${name})`);
  const colour = getComputedStyle(probe).outlineColor;
  probe.style.removeProperty("outline-color");
  return colour;
}

/** Return the colour between two ends for `share` from 0 to 1: violet over teal to yellow (viridis). */
export function scaleColour(share, dark = isDark()) {
  const stops = dark
    ? [[120, 90, 190], [80, 140, 200], [60, 190, 160], [150, 215, 90], [250, 230, 60]]
    : [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 170, 60], [190, 160, 0]];
  const place = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1);
  const [low, high, part] = [stops[Math.floor(place)], stops[Math.floor(place) + 1], place % 1];
  return `rgb(${low.map((each, at) => Math.round(each + (high[at] - each) * part)).join(" ")})`;
}
