"""What ``sbusctl bench`` does: workers that publish and subscribe, a pool of them, and what they measured."""
