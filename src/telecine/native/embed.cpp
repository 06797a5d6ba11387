// Embeds the PTX of the kernel as a zero-terminated string. TELECINE_PTX is its path, set by CMakeLists.txt.
asm(".section .rodata\n"
    ".global telecine_pixels_ptx\n"
    ".hidden telecine_pixels_ptx\n"
    "telecine_pixels_ptx:\n"
    ".incbin \"" TELECINE_PTX
    "\"\n"
    ".byte 0\n"
    ".section .text\n");
