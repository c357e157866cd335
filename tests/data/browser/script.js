// Looks at everything that the page has loaded, asks for more, and writes what it found into
// #result. tests/serve_http_browser.rs awaits `checked`.

const element = (id) => document.getElementById(id);
const once = (target, event) =>
  new Promise((resolve, reject) => {
    target.addEventListener(event, resolve, { once: true });
    target.addEventListener("error", () => reject(new Error(`${target.id}: error`)), { once: true });
  });

async function image(id) {
  const image = element(id);
  await image.decode();
  return [image.naturalWidth, image.naturalHeight];
}

// SHA-256 of bytes, in hexadecimal.
async function digest(bytes) {
  const digits = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digits, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// When the frame of this second is shown, which may be a while after the video is there.
const shown = (video, second) =>
  new Promise((resolve) => {
    const look = (_, frame) =>
      Math.abs(frame.mediaTime - second) < 0.05 ? resolve() : video.requestVideoFrameCallback(look);
    video.requestVideoFrameCallback(look);
  });

// The frame at each of these seconds: where the video then is, the colour in its middle, and what
// identifies all its pixels.
async function frames(video, seconds) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const seen = [];
  for (const second of seconds) {
    const ready = Promise.all([once(video, "seeked"), shown(video, second)]);
    video.currentTime = second;
    await ready;
    context.drawImage(video, 0, 0);
    const middle = context.getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data;
    const [red, green, blue] = Array.from(middle, (value) => value > 127);
    const colour = red ? (green && blue ? "white" : "red") : green ? "green" : blue ? "blue" : "?";
    const all = context.getImageData(0, 0, canvas.width, canvas.height).data;
    seen.push([video.currentTime, colour, await digest(all)]);
  }
  return seen;
}

async function video() {
  const video = element("video");
  if (video.readyState < HTMLMediaElement.HAVE_METADATA) await once(video, "loadedmetadata");
  const size = [video.videoWidth, video.videoHeight, video.duration];
  return { size, frames: await frames(video, [2.5, 0.5, 3.5, 1.5]) };
}

async function range(field) {
  const answer = await fetch("large.bin", { headers: { Range: field }, cache: "no-store" });
  const bytes = new Uint8Array(await answer.arrayBuffer());
  return [answer.status, answer.headers.get("Content-Range"), bytes.length, bytes[0]];
}

// A version that is still current is not sent again.
async function unchanged() {
  const first = await fetch("large.bin", { cache: "no-store" });
  const bytes = new Uint8Array(await first.arrayBuffer());
  const intact = bytes.every((byte, at) => byte === (at * 7 + (at >> 8)) % 256);
  const tag = first.headers.get("ETag");
  const second = await fetch("large.bin", { headers: { "If-None-Match": tag } });
  return { length: bytes.length, intact, statuses: [first.status, second.status] };
}

async function check() {
  if (document.readyState !== "complete") await once(window, "load");
  const heading = document.querySelector("h1");
  const script = performance.getEntriesByName(document.scripts[0].src)[0];
  return {
    png: await image("png"),
    svg: await image("svg"),
    heading: [heading.textContent, getComputedStyle(heading).color],
    script_is_compressed: script.encodedBodySize < script.decodedBodySize,
    video: await video(),
    ranges: [
      await range("bytes=1000-1999"),
      await range("bytes=-1"),
      await range("bytes=9999999-"),
    ],
    unchanged: await unchanged(),
    missing: (await fetch("missing")).status,
  };
}

const checked = check()
  .catch((error) => ({ error: String(error) }))
  .then((result) => (element("result").textContent = JSON.stringify(result)));
