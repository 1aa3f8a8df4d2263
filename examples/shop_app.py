"""A web shop with three lines of pylair in it: an agent can look into it and change it while it serves."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pylair

prices = {"/tea": 3, "/coffee": 4}


class Shop(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"{prices.get(self.path, 'sold out')}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
pylair.register("prices", prices)
pylair.start(app_id="shop")
print(f"the shop is open at http://127.0.0.1:{server.server_port}/tea", flush=True)
server.serve_forever()
