"""Does DiffusionNFT learn on clips? The preset tiny-video-nft over several seeds, judged as tiny_image_nft.py does.

python benchmarks/tiny_video_nft.py [--seeds 0 1 2] [--at-once 1] [--set KEY=VALUE ...] [--write]
"""

from tiny_image_nft import main

if __name__ == "__main__":
    main("tiny-video-nft", __doc__)
