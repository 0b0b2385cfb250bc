from sbusd.dataplane.contract import MakeSwitch

Switch: MakeSwitch
