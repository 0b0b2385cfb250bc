"""What ``sbusctl bench`` does: workers that publish and subscribe, a crew of them, and what they measured."""
