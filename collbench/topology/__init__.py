"""What the machine is: devices, switches and the links between them."""
