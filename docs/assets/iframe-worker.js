// Search on pages that are opened as files: browsers start no workers there, so an iframe runs the
// script of the worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
      this.isLoaded = new Promise(resolve => {
        const script = this.inside.document.createElement("script")
        script.src = url
        script.onload = resolve
        this.inside.document.body.append(script)
      })
    }

    async postMessage(data) {
      await this.isLoaded
      this.inside.dispatchEvent(new MessageEvent("message", {data}))
    }
  }
}
