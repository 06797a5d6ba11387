"""User code with one mistake in each line that is marked; type checkers must reject exactly these lines."""

import telecine

telecine.load(3)  # rejected
telecine.load()  # rejected
telecine.load("clip.mp4", 8)  # rejected
telecine.load("clip.mp4", nframes=8)  # rejected
telecine.load("clip.mp4", num_frames="8")  # rejected
telecine.load("clip.mp4", errors="ignore")  # rejected
telecine.load("clip.mp4", layout="HWC")  # rejected
telecine.load("clip.mp4", pad=True)  # rejected
telecine.load("clip.mp4", policy="qwen9")  # rejected
telecine.load("clip.mp4", size="large")  # rejected
telecine.load("clip.mp4", timeout="10 s")  # rejected
telecine.load("clip.mp4", out="tensorflow")  # rejected
telecine.load("clip.mp4", limits={"max_pixels": 1})  # rejected
telecine.Limits(max_pixels="large")  # rejected
telecine.Fit("large")  # rejected
telecine.Sampling(num_frames="8")  # rejected
telecine.probe("clip.mp4", num_frames=8)  # rejected
telecine.open("clip.mp4", num_frames=8)  # rejected
telecine.Pool().submit("clip.mp4", nframes=8)  # rejected
telecine.Pool().map("clip.mp4", nframes=8)  # rejected
telecine.Pool().load(3)  # rejected
attribute = telecine.load("clip.mp4").frames  # rejected
item = telecine.load("clip.mp4")["first"]  # rejected
telecine.Pool().map(["clip.mp4"], errors="ignore")  # rejected
telecine.Pool(threads="2")  # rejected
