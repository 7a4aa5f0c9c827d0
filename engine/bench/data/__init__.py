"""One data process under the traffic of many replicas.

saturation  tokens a second, memory and bytes of its log, and where they end
traffic     that traffic
book        its words
"""
